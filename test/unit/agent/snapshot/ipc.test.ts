// What the agent's two halves say to each other: frames in whatever pieces they come, and what is no snapshot is told by its place.
import test from 'ava';
import { createFrameParser, frameOf } from '../../../../src/agent/snapshot/ipc/frames.ts';
import {
  encoded,
  materialFrom,
  parseHealth,
  reviewedFrom,
  textOf,
  wrongWithSnapshot,
} from '../../../../src/agent/snapshot/ipc/protocol.ts';
import { materialOf } from '../../../../src/agent/snapshot/source.ts';
import { processes } from '../../../../src/exporter/collectors/process.ts';
import { COLLECTORS, createRenderer } from '../../../../src/exporter/render.ts';
import { exampleSnapshot } from '../../../support/product/snapshots.ts';

const bytesOf = (text: string) => {
  const bytes = new TextEncoder().encode(text);
  return new Uint8Array(bytes);
};

test('frames come out as they went in, in whatever pieces they come', (t) => {
  const sent = ['', 'a', 'é'.repeat(300), '', 'x'.repeat(5000)].map((payload, id) => ({
    kind: id + 16,
    id: 2 ** 32 - 1 - id,
    payload,
  }));
  const wire = Buffer.concat(sent.map(({ kind, id, payload }) => frameOf(kind, id, payload)));
  for (const size of [1, 2, 7, 8, 9, 10, 100, wire.length]) {
    const cutter = createFrameParser(5000);
    const came = [];
    for (let at = 0; at < wire.length; at += size) came.push(...cutter.push(wire.subarray(at, at + size)).frames);
    t.deepEqual(
      came.map(({ kind, id, payload }) => ({ kind, id, payload: textOf(payload) })),
      sent,
      `in pieces of ${size}`,
    );
    for (const { payload } of came) t.is(payload.buffer.byteLength, payload.byteLength, 'a buffer of its own');
  }
});

test('a frame that is too long ends reading before memory is allocated for it', (t) => {
  const cutter = createFrameParser(100);
  const long = Buffer.from([0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 1]);
  const { frames, wrong } = cutter.push(Buffer.concat([frameOf(3, 1), long]));
  t.is(frames.length, 1);
  t.is(wrong, 'a frame of 4294967295 bytes; the limit is 100');
  t.deepEqual(cutter.push(frameOf(3, 2)).frames, []);
});

test('a page of a snapshot that was handed over is the page of the snapshot itself', async (t) => {
  for (const withProcesses of [true, false]) {
    const { snapshot, own } = materialFrom(bytesOf(encoded(materialOf(exampleSnapshot, 'own 1\n', withProcesses))));
    t.is(own, 'own 1\n');
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
  for (const text of ['', '{', 'null', '{}', '{"own":1}']) t.throws(() => materialFrom(bytesOf(text)), undefined, text);
  for (const text of ['', 'null', '{}', '{"up":"yes"}']) t.throws(() => parseHealth(bytesOf(text)), undefined, text);
  t.deepEqual(parseHealth(bytesOf('{"up":false,"problem":"gone","more":1}')), { up: false, problem: 'gone' });
  t.is(reviewedFrom(bytesOf('forbidden')), 'forbidden');
  t.throws(() => reviewedFrom(bytesOf('allowed\n')), { message: /unknown result of a token review: "allowed\\n"$/ });
});
