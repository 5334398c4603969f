// Which container an ID belongs to: as the runtime reports it, or as the cluster does where the runtime does not.
import test from 'ava';
import { createContainerIndex } from '../../../../src/agent/attribution/container-index.ts';

const [one, two, three] = ['aa', 'bb', 'cc'].map((digits) => digits.repeat(32)) as [string, string, string];

test("the runtime's data counts until it is removed, then the cluster's", (t) => {
  const book = createContainerIndex((id) => (id === three ? { podUid: 'p', container: 'late' } : undefined));
  t.is(book.nameOf(one), undefined);
  book.add(one, { podUid: 'p', container: 'main', terminationLog: '0000000a' });
  t.like(book.nameOf(one), { podUid: 'p', container: 'main' });
  t.like(book.nameOf(three), { podUid: 'p', container: 'late' });
  book.add(three, { podUid: 'p', container: 'main' });
  t.like(book.nameOf(three), { podUid: 'p', container: 'main' }, 'the runtime is nearer');
  book.remove(three);
  t.like(book.nameOf(three), { podUid: 'p', container: 'late' });
});

test('of containers with one name the last reported one counts', (t) => {
  const book = createContainerIndex(() => undefined);
  book.add(one, { podUid: 'p', container: 'main', terminationLog: '0000000a' });
  book.add(two, { podUid: 'p', container: 'main', terminationLog: '0000000b' });
  book.add(three, { podUid: 'q', container: 'main' });
  t.deepEqual(book.newest('p', 'main'), { id: two, terminationLog: '0000000b' });
  t.deepEqual(book.newest('q', 'main'), { id: three });
  t.is(book.newest('p', 'other'), undefined);
  book.add(one, { podUid: 'p', container: 'main' });
  t.deepEqual(book.newest('p', 'main'), { id: one }, 'reported again');
  book.remove(one);
  t.deepEqual(book.newest('p', 'main'), { id: two, terminationLog: '0000000b' });
});

test('a container made without its GPUs is reported once, and so is its successor', (t) => {
  const book = createContainerIndex(() => undefined);
  book.add(one, { podUid: 'p', container: 'main' });
  t.true(book.markMissed(one));
  t.false(book.markMissed(one));
  t.deepEqual(book.newest('p', 'main'), { id: one, missed: true });
  book.add(two, { podUid: 'p', container: 'main' });
  t.deepEqual(book.newest('p', 'main'), { id: two });
  book.remove(two);
  book.remove(one);
  t.true(book.markMissed(one), 'forgotten');
});
