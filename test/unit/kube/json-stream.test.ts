// Lists and lines that arrive in pieces are read as JSON.parse reads them whole.
import test from 'ava';
import fc from 'fast-check';
import { createItemReader, readJsonLines } from '../../../src/kube/json-stream.ts';

const cut = (text: string, cuts: readonly number[]): readonly Uint8Array[] => {
  const bytes = Buffer.from(text);
  const ends = [...new Set([0, ...cuts.map((at) => at % (bytes.length + 1)), bytes.length])].toSorted((a, b) => a - b);
  return ends.slice(1).map((end, index) => bytes.subarray(ends[index], end));
};

/** No backslash: why is in test/unit/api/request-annotation.test.ts. */
const key = fc.string({ unit: 'binary' }).filter((name) => !name.includes('\\'));
const objects = fc.array(fc.dictionary(key, fc.jsonValue()), { maxLength: 5 });
const cuts = fc.array(fc.nat(), { maxLength: 20 });

test('a list in pieces has the items and the rest of the whole list', (t) => {
  const frames = fc.record({ kind: fc.string(), metadata: fc.dictionary(key, fc.jsonValue()) });
  fc.assert(
    fc.property(frames, objects, cuts, fc.boolean(), fc.nat({ max: 2 }), (frame, items, at, isFirst, indent) => {
      const list = isFirst ? { items, ...frame } : { ...frame, items };
      const read: unknown[] = [];
      const reader = createItemReader((item) => read.push(item));
      for (const piece of cut(JSON.stringify(list, null, indent), at)) reader.push(piece);
      const rest = reader.end();
      t.deepEqual(JSON.stringify(read), JSON.stringify(JSON.parse(JSON.stringify(items))));
      t.deepEqual(JSON.stringify(rest), JSON.stringify(JSON.parse(JSON.stringify({ ...list, items: [] }))));
    }),
  );
});

test('objects that do not mention a text are passed over', (t) => {
  const read: unknown[] = [];
  const reader = createItemReader((item) => read.push(item), '"cotenant.io/grant"');
  const items = [{ a: { 'cotenant.io/grant': 'x' } }, { a: { 'cotenant.io/other': 'x' } }, {}];
  for (const piece of cut(JSON.stringify({ metadata: {}, items }), [20, 30, 40, 50])) reader.push(piece);
  t.deepEqual([read, reader.end()], [items.slice(0, 1), { metadata: {}, items: [] }]);
});

test('a list that ends within is refused', (t) => {
  const text = JSON.stringify({ metadata: { resourceVersion: '1' }, items: [{ a: 1 }, { b: '}' }] });
  for (let length = 0; length < text.length; length += 1) {
    const reader = createItemReader(() => {});
    reader.push(Buffer.from(text.slice(0, length)));
    t.throws(() => reader.end(), { message: 'the list ended too early' }, text.slice(0, length));
  }
});

test('lines in pieces are their values, without a last one that was cut', async (t) => {
  await fc.assert(
    fc.asyncProperty(objects, cuts, async (values, at) => {
      const text = values.map((value) => `${JSON.stringify(value)}\n`).join('');
      const read: unknown[] = [];
      async function* pieces() {
        yield* cut(`${text}{"cut":`, at);
      }
      for await (const value of readJsonLines(pieces())) read.push(value);
      t.deepEqual(JSON.stringify(read), JSON.stringify(JSON.parse(JSON.stringify(values))));
    }),
  );
});
