// Whose a container id is: the runtime's word first, the cluster's where the runtime said nothing.
import test from 'ava';
import { createContainerBook } from '../../../../src/agent/attribution/container-index.ts';

const [one, two, three] = ['aa', 'bb', 'cc'].map((digits) => digits.repeat(32)) as [string, string, string];

test('what the runtime told counts until it is forgotten, then what the cluster knows', (t) => {
  const book = createContainerBook((id) => (id === three ? { podUid: 'p', container: 'late' } : undefined));
  t.is(book.nameOf(one), undefined);
  book.tell(one, { podUid: 'p', container: 'main', terminationLog: '0000000a' });
  t.like(book.nameOf(one), { podUid: 'p', container: 'main' });
  t.like(book.nameOf(three), { podUid: 'p', container: 'late' });
  book.tell(three, { podUid: 'p', container: 'main' });
  t.like(book.nameOf(three), { podUid: 'p', container: 'main' }, 'the runtime is nearer');
  book.forget(three);
  t.like(book.nameOf(three), { podUid: 'p', container: 'late' });
});

test('the newest container of a name is the one that was told last', (t) => {
  const book = createContainerBook(() => undefined);
  book.tell(one, { podUid: 'p', container: 'main', terminationLog: '0000000a' });
  book.tell(two, { podUid: 'p', container: 'main', terminationLog: '0000000b' });
  book.tell(three, { podUid: 'q', container: 'main' });
  t.deepEqual(book.newest('p', 'main'), { id: two, terminationLog: '0000000b' });
  t.deepEqual(book.newest('q', 'main'), { id: three });
  t.is(book.newest('p', 'other'), undefined);
  book.tell(one, { podUid: 'p', container: 'main' });
  t.deepEqual(book.newest('p', 'main'), { id: one }, 'told again');
  book.forget(one);
  t.deepEqual(book.newest('p', 'main'), { id: two, terminationLog: '0000000b' });
});

test('a container that was made without its GPUs is news once, and the next one of its name is another matter', (t) => {
  const book = createContainerBook(() => undefined);
  book.tell(one, { podUid: 'p', container: 'main' });
  t.true(book.passBy(one));
  t.false(book.passBy(one));
  t.deepEqual(book.newest('p', 'main'), { id: one, passedBy: true });
  book.tell(two, { podUid: 'p', container: 'main' });
  t.deepEqual(book.newest('p', 'main'), { id: two });
  book.forget(two);
  book.forget(one);
  t.true(book.passBy(one), 'forgotten');
});
