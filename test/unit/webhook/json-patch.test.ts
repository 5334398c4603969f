import test from 'ava';
import fc from 'fast-check';
import jsonpatch from 'jsonpatch';
import { isDeepEqual } from '../../../src/common/deep-equal.ts';
import { applyPatch, type Operation } from '../../../webhook/apply-patch.ts';
import { diff, MOST_CHANGES_OF_A_LIST, verifyPatch } from '../../../webhook/json-patch.ts';
import { escapeStep, fieldPath } from '../../../webhook/json-pointer.ts';

test('a patch is as short as the change', (t) => {
  const before = { a: 1, list: [{ name: 'x', v: 1 }, { name: 'y' }, { name: 'z' }], gone: true, kept: { deep: [1] } };
  const after = { a: 2, list: [{ name: 'x', v: 2 }, { name: 'z' }, { name: 'new' }], kept: before.kept, added: null };
  t.deepEqual(diff(before, after), [
    { op: 'remove', path: '/gone' },
    { op: 'replace', path: '/a', value: 2 },
    { op: 'replace', path: '/list/0/v', value: 2 },
    { op: 'remove', path: '/list/1' },
    { op: 'add', path: '/list/-', value: { name: 'new' } },
    { op: 'add', path: '/added', value: null },
  ]);
});

test('of entries with one name the last ones go', (t) => {
  const before = { list: [{ name: 'x' }, { name: 'x' }, { name: 'y' }] };
  t.deepEqual(diff(before, { list: [{ name: 'x' }, { name: 'y' }] }), [{ op: 'remove', path: '/list/1' }]);
});

test('a list with very many changes is replaced whole, but only the innermost one', (t) => {
  const entries = (count: number) => Array.from({ length: count }, (_, index) => ({ name: `v${index}` }));
  const changed = (count: number) => diff({ list: entries(count) }, { list: [] });
  t.is(changed(MOST_CHANGES_OF_A_LIST).length, MOST_CHANGES_OF_A_LIST);
  t.deepEqual(changed(MOST_CHANGES_OF_A_LIST + 1), [{ op: 'replace', path: '/list', value: [] }]);

  const before = { list: [{ name: 'a', env: entries(5000) }, { name: 'b' }] };
  const after = { list: [{ name: 'a', env: [{ name: 'new' }] }, { name: 'b' }] };
  const operations = diff(before, after);
  t.deepEqual(operations, [{ op: 'replace', path: '/list/0/env', value: [{ name: 'new' }] }]);
  t.deepEqual(verifyPatch(before, operations, after), { ok: true, value: true });
});

test('keys are escaped so that they come back as they were', (t) => {
  t.is(escapeStep('a/b~c~1'), 'a~1b~0c~01');
  const after = { 'cotenant.io/gpu': { '~1': 1, '~0': 2, '/': 3, '': 4, '0': 5, '-': 6 } };
  const operations = diff({ 'cotenant.io/gpu': { '0': 1 } }, after);
  t.deepEqual(
    operations.map(({ path }) => path),
    ['/0', '/~01', '/~00', '/~1', '/', '/-'].map((step) => `/cotenant.io~1gpu${step}`),
  );
  t.deepEqual(verifyPatch({ 'cotenant.io/gpu': { '0': 1 } }, operations, after), { ok: true, value: true });
});

test('a pointer is shown as a field path', (t) => {
  t.is(fieldPath('/spec/containers/0/env/-'), 'spec.containers[0].env[-]');
  t.is(fieldPath('/a~01b'), 'a~1b');
  t.is(fieldPath('/metadata/annotations/cotenant.io~1request'), 'metadata.annotations["cotenant.io/request"]');
});

// No own `__proto__`: the library that compares cannot copy it.
const key = fc.oneof(
  fc.constantFrom('name', 'mountPath', 'a/b', '~', '~1', '', '0', '1', '-', 'constructor', 'toString', 'length'),
  fc.string({ maxLength: 4 }).filter((text) => text !== '__proto__'),
);
const { value: json } = fc.letrec((tie) => ({
  value: fc.oneof(
    { depthSize: 'small', withCrossShrink: true },
    fc.constantFrom<unknown>(null, 0, -0.5, '', 'x', 'main', true, false),
    fc.array(tie('value'), { maxLength: 5 }),
    fc.dictionary(key, tie('value'), { maxKeys: 5, noNullPrototype: true }),
  ),
}));
const object = fc.dictionary(key, json, { maxKeys: 5, noNullPrototype: true });
const named = fc.record({ name: fc.constantFrom('a', 'b', 'c', 'd'), mountPath: fc.constantFrom('/x', '/y'), v: json });
const lists = fc.record({ list: fc.array(fc.oneof(named, json), { maxLength: 8 }) }, { noNullPrototype: true });
const document = fc.oneof(object, lists);

test('for any two documents, the patch turns one into the other and changes neither', (t) => {
  t.notThrows(() => {
    fc.assert(
      fc.property(document, document, (before, after) => {
        const texts = [JSON.stringify(before), JSON.stringify(after)];
        const operations = diff(before, after);
        const proof = verifyPatch(before, operations, after);
        if (!proof.ok) throw new Error(`${proof.error}: ${JSON.stringify(operations)}`);
        const independent = jsonpatch.apply_patch(before, [...operations]);
        if (!isDeepEqual(after, independent)) throw new Error(`another reader's: ${JSON.stringify(operations)}`);
        if (operations.length === 0 && !isDeepEqual(before, after)) throw new Error('no operation for a difference');
        if (JSON.stringify(before) !== texts[0] || JSON.stringify(after) !== texts[1]) throw new Error('input changed');
        if (diff(after, structuredClone(after)).length > 0) throw new Error('equal documents differ');
      }),
      { numRuns: 3000 },
    );
  });
});

test('equality knows own keys only, and no order of keys', (t) => {
  t.true(isDeepEqual({ a: 1, b: [{ c: null }] }, { b: [{ c: null }], a: 1 }));
  for (const [a, b] of [
    [{ a: undefined }, {}],
    [{ a: undefined }, { b: undefined }],
    [{}, { toString: 1 }],
    [{ toString: 1 }, {}],
    [[], {}],
    [[1], [1, 2]],
    [null, {}],
    ['1', 1],
    [JSON.parse('{"__proto__": 1}'), {}],
  ]) {
    t.false(isDeepEqual(a, b), JSON.stringify([a, b]));
    t.false(isDeepEqual(b, a), JSON.stringify([b, a]));
  }
});

test('an own key __proto__ is a key as any other', (t) => {
  const before = JSON.parse('{"metadata": {"annotations": {"__proto__": "x"}}, "spec": {"__proto__": {"a": true}}}');
  const after = JSON.parse('{"metadata": {"annotations": {"__proto__": "y", "b": "1"}}, "spec": {"__proto__": {}}}');
  const operations = diff(before, after);
  t.deepEqual(
    operations.map(({ op, path }) => [op, path]),
    [
      ['replace', '/metadata/annotations/__proto__'],
      ['add', '/metadata/annotations/b'],
      ['remove', '/spec/__proto__/a'],
    ],
  );
  t.is(JSON.stringify(applyPatch(before, operations)), JSON.stringify(after));
  t.deepEqual(verifyPatch(before, operations, after), { ok: true, value: true });
  t.false(verifyPatch(before, operations.slice(1), after).ok);
  const added = JSON.parse('{"__proto__": 1}');
  t.is(JSON.stringify(applyPatch({}, diff({}, added))), '{"__proto__":1}');
  t.false('a' in {} || 'b' in {}, 'no prototype is changed');
});

// No text and no number: the library adds to them as if they were objects.
const OPERATIONS = fc.array(
  fc.record({
    op: fc.constantFrom('add', 'replace', 'remove'),
    path: fc
      .array(fc.constantFrom('a', 'b', 'list', '0', '1', '2', '-', '01', 'x'), { minLength: 1, maxLength: 3 })
      .map((steps) => `/${steps.join('/')}`),
    value: fc.constantFrom<unknown>(null, [], [null], {}, { a: null, list: [] }),
  }) as fc.Arbitrary<Operation>,
  { maxLength: 6 },
);
const PLACES = { a: { b: null, list: [null, { x: null }] }, list: [[null], { a: null }], b: {}, x: null };

test('random operations do what they do in another library, or fail as there', (t) => {
  let [applied, refused] = [0, 0];
  const tried = <T>(body: () => T): { readonly value: T } | undefined => {
    try {
      return { value: body() };
    } catch {
      return undefined;
    }
  };
  t.notThrows(() => {
    fc.assert(
      fc.property(OPERATIONS, (operations) => {
        const ours = tried(() => applyPatch(PLACES, operations));
        const theirs = tried(() => jsonpatch.apply_patch(PLACES, [...operations]));
        if (ours) applied += 1;
        else refused += 1;
        if (JSON.stringify(ours) !== JSON.stringify(theirs))
          throw new Error(`${JSON.stringify(ours)} and ${JSON.stringify(theirs)}: ${JSON.stringify(operations)}`);
      }),
      { numRuns: 5000 },
    );
  });
  t.true(applied > 500 && refused > 500, `${applied} applied, ${refused} refused`);
  t.is(JSON.stringify(PLACES), '{"a":{"b":null,"list":[null,{"x":null}]},"list":[[null],{"a":null}],"b":{},"x":null}');
});

test('a patch that does not apply, or leads elsewhere, is refuted', (t) => {
  const cases: [object, Operation[], RegExp][] = [
    [{}, [{ op: 'add', path: '/metadata/annotations/a', value: 1 }], /does not apply: .*: there is no metadata/],
    [{}, [{ op: 'remove', path: '/a' }], /does not apply: .*: there is no a$/],
    [{ a: null }, [{ op: 'add', path: '/a/b', value: 1 }], /does not apply: .*: nothing is in null/],
    [{ a: 1 }, [{ op: 'replace', path: '/a', value: 2 }], /does not lead/],
    [{ a: 'text' }, [{ op: 'add', path: '/a/b', value: 1 }], /does not apply: .*: nothing is in a string/],
    [{ a: [] }, [{ op: 'add', path: '/a/2', value: 1 }], /does not apply: .*: the list has 0 entries/],
    [{ a: [] }, [{ op: 'remove', path: '/a/-' }], /does not apply/],
  ];
  for (const [before, operations, why] of cases) {
    const proof = verifyPatch(before as Record<string, unknown>, operations, {});
    t.regex(proof.ok ? 'proven' : proof.error, why);
  }
});
