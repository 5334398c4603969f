// What the exporter half makes of the node half's answers: the same page, and an error with its place for what is no
// snapshot.
import test from 'ava';
import { createRecorder } from '../../../../src/agent/snapshot/history.ts';
import {
  healthFrom,
  materialFrom,
  reviewedFrom,
  wrongWithSnapshot,
} from '../../../../src/agent/snapshot/ipc/validate.ts';
import { createLocalSource } from '../../../../src/agent/snapshot/source.ts';
import { processes } from '../../../../src/exporter/collectors/process.ts';
import { COLLECTORS, createRenderer } from '../../../../src/exporter/render.ts';
import { exampleSnapshot } from '../../../support/product/snapshots.ts';

const bytesOf = (text: string) => {
  const bytes = new TextEncoder().encode(text);
  return new Uint8Array(bytes);
};

test('a page of a snapshot that was handed over is the page of the snapshot itself', async (t) => {
  const source = createLocalSource({
    snapshot: () => exampleSnapshot,
    history: createRecorder().history,
    own: async () => 'own 1\n',
  });
  for (const withProcesses of [true, false]) {
    const { snapshot, own } = materialFrom(bytesOf(JSON.stringify(await source.material(withProcesses))));
    t.is(own, 'own 1\n');
    if (!snapshot) return t.fail();
    const collectors = [...COLLECTORS, ...(withProcesses ? [processes] : [])];
    const render = async (of: typeof exampleSnapshot) =>
      (await createRenderer(collectors)(of)).text.replaceAll(
        /^(cotenant_exporter_\w+_duration_seconds.*) \S+$/gm,
        '$1',
      );
    t.is(await render(snapshot), await render(exampleSnapshot));
  }
});

test('an invalid snapshot is refused with the path of its error', (t) => {
  t.is(wrongWithSnapshot(exampleSnapshot), undefined);
  const cases: readonly (readonly [unknown, string])[] = [
    [null, 'snapshot: expected an object'],
    [[], 'snapshot: expected an object'],
    [{ ...exampleSnapshot, atMs: '1' }, 'snapshot.atMs: expected a number'],
    [{ ...exampleSnapshot, driverVersion: 1 }, 'snapshot.driverVersion: expected a string'],
    [{ ...exampleSnapshot, containers: {} }, 'snapshot.containers: expected a list'],
    [{ ...exampleSnapshot, xids: [exampleSnapshot.xids[0] ?? {}, 7] }, 'snapshot.xids[1]: expected an object'],
    [{ ...exampleSnapshot, self: { ...exampleSnapshot.self, up: 1 } }, 'snapshot.self.up: expected true or false'],
  ];
  for (const [snapshot, wrong] of cases) {
    t.is(wrongWithSnapshot(snapshot), wrong);
    t.throws(() => materialFrom(bytesOf(JSON.stringify({ own: '', snapshot }))), {
      message: `the node half sent an invalid snapshot: ${wrong}`,
    });
  }
  t.deepEqual(materialFrom(bytesOf('{"own":"x"}')), { own: 'x' }, 'before the first sample');
  for (const text of ['', '{', 'null', '{}', '{"own":1}']) t.throws(() => materialFrom(bytesOf(text)), undefined, text);
  for (const text of ['', 'null', '{}', '{"up":"yes","number":1}', '{"up":true}'])
    t.throws(() => healthFrom(bytesOf(text)), undefined, text);
  t.deepEqual(healthFrom(bytesOf('{"up":false,"problem":"gone","number":3,"more":1}')), {
    up: false,
    problem: 'gone',
    number: 3,
  });
  t.is(reviewedFrom(bytesOf('forbidden')), 'forbidden');
  t.throws(() => reviewedFrom(bytesOf('allowed\n')), { message: /unknown result of a token review: "allowed\\n"$/ });
});
