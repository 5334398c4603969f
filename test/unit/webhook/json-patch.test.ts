import test from 'ava';
import fc from 'fast-check';
import jsonpatch from 'jsonpatch';
import { isDeepEqual } from '../../../src/common/deep-equal.ts';
import {
  diff,
  escapeStep,
  fieldPath,
  findPrototypeKey,
  MOST_CHANGES_OF_A_LIST,
  type Operation,
  verifyPatch,
} from '../../../webhook/json-patch.ts';

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

// No own `__proto__`: the library cannot copy it, which has its own tests below.
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

test('an own key __proto__ on a patch’s path is reported, elsewhere it is harmless', (t) => {
  const onTheWay = JSON.parse('{"metadata": {"annotations": {"__proto__": "x"}}}');
  const operations: Operation[] = [{ op: 'add', path: '/metadata/annotations/a', value: '1' }];
  t.is(findPrototypeKey(onTheWay, operations), 'metadata.annotations["__proto__"]');
  t.false(
    verifyPatch(onTheWay, operations, JSON.parse('{"metadata": {"annotations": {"__proto__": "x", "a": "1"}}}')).ok,
  );

  const elsewhere = JSON.parse('{"metadata": {"annotations": {}}, "spec": {"__proto__": {"polluted": true}}}');
  t.is(findPrototypeKey(elsewhere, operations), undefined);
  t.deepEqual(verifyPatch(elsewhere, operations, { ...elsewhere, metadata: { annotations: { a: '1' } } }), {
    ok: true,
    value: true,
  });
  t.false('polluted' in {}, 'and no prototype is changed by it');
});

test('a patch that does not apply, or leads elsewhere, is refuted', (t) => {
  const cases: [object, Operation[], RegExp][] = [
    [{}, [{ op: 'add', path: '/metadata/annotations/a', value: 1 }], /does not apply: Path not found/],
    [{}, [{ op: 'remove', path: '/a' }], /does not apply: Remove operation/],
    [{ a: null }, [{ op: 'add', path: '/a/b', value: 1 }], /does not apply/],
    [{ a: 'text' }, [{ op: 'add', path: '/a/b', value: 1 }], /does not lead/],
    [{ a: [] }, [{ op: 'add', path: '/a/2', value: 1 }], /does not apply: Add operation/],
    [{ a: [] }, [{ op: 'remove', path: '/a/-' }], /does not apply/],
  ];
  for (const [before, operations, why] of cases) {
    const proof = verifyPatch(before as Record<string, unknown>, operations, {});
    t.regex(proof.ok ? 'proven' : proof.error, why);
  }
});

test('the patch library still has the traps that verifyPatch avoids', (t) => {
  // If one of these stops being so, the code that mentions it may become simpler.
  const lost = jsonpatch.apply_patch(JSON.parse('{"__proto__": 1, "a": 1}'), [{ op: 'replace', path: '/a', value: 2 }]);
  t.deepEqual(Object.keys(lost), ['a'], 'an own __proto__ is lost when its object is copied');
  const blind = [{ op: 'test', path: '/a', value: { b: 2 } }];
  t.notThrows(() => jsonpatch.apply_patch({ a: { b: 1 } }, blind), 'its test operation does not compare objects');
  const input = { a: { list: [1] } };
  const output = jsonpatch.apply_patch(input, [{ op: 'add', path: '/a/list/-', value: 2 }]);
  t.deepEqual([input, output], [{ a: { list: [1] } }, { a: { list: [1, 2] } }], 'inputs are not changed');
});
