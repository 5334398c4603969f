// The text that a page of metrics is: what Prometheus's own client would have written, and what it refuses.
import test from 'ava';
import * as fc from 'fast-check';
import { Counter, Gauge, Registry } from 'prom-client';
import { createExposition, type Labels } from '../../../src/exporter/format/text.ts';

const NAMES = ['gpu', 'pod'];
const value = fc.oneof(fc.integer(), fc.double({ noNaN: true, noDefaultInfinity: true }));
const label = fc.oneof(fc.string(), fc.constantFrom('a\\b', 'a"b', 'a\nb', '', 'GPU-1'));
const labels: fc.Arbitrary<Labels> = fc.record({ gpu: label, pod: label });
const series = fc.array(fc.tuple(labels, value.map(Math.abs)), { maxLength: 20 });

/** Their sum is above all numbers. */
const BEYOND: [Labels, number][] = [
  [{ gpu: '0', pod: 'a' }, 1e308],
  [{ gpu: '0', pod: 'a' }, 1e308],
];

test('a page is, byte by byte, what prom-client writes', async (t) => {
  await fc.assert(
    fc.asyncProperty(series, series, fc.string(), async (gauges, counters, help) => {
      const registry = new Registry();
      const exposition = createExposition();
      const gauge = new Gauge({ name: 'g_bytes', help: `g${help}`, labelNames: NAMES, registers: [registry] });
      const counter = new Counter({ name: 'c_total', help: 'c', labelNames: NAMES, registers: [registry] });
      const [ours, total] = [
        exposition.register({ name: 'g_bytes', type: 'gauge', help: `g${help}`, labelNames: NAMES }),
        exposition.register({ name: 'c_total', type: 'counter', help: 'c', labelNames: NAMES }),
      ];
      for (const [of, number] of gauges) {
        gauge.set(of, number);
        ours.set(of, number);
      }
      for (const [of, number] of counters) {
        counter.inc(of, number);
        total.add(of, number);
      }
      t.is(exposition.text(), await registry.metrics());
    }),
    { examples: [[[], BEYOND, '']] },
  );
});

test('what is cleared is gone; what was registered stays', (t) => {
  const exposition = createExposition();
  const gauge = exposition.register({ name: 'g', type: 'gauge', help: 'What it is.', labelNames: NAMES });
  gauge.set({ gpu: '0', pod: 'a' }, 1);
  gauge.clear();
  t.is(exposition.text(), '# HELP g What it is.\n# TYPE g gauge\n');
});

test('a label that was not registered, a name that is taken, and one that cannot be one are refused', (t) => {
  const exposition = createExposition();
  const gauge = exposition.register({ name: 'g', type: 'gauge', help: '', labelNames: NAMES });
  t.throws(() => gauge.set({ gpu: '0', node: 'a' }, 1), {
    message: 'g: gpu,node are not the labels it has: gpu, pod',
  });
  t.throws(() => exposition.register({ name: 'g', type: 'gauge', help: '', labelNames: [] }), { message: /already/ });
  t.throws(() => exposition.register({ name: 'g h', type: 'gauge', help: '', labelNames: [] }), { message: /"g h"/ });
  t.throws(() => exposition.register({ name: 'i', type: 'gauge', help: '', labelNames: ['a-b'] }), {
    message: /"a-b"/,
  });
});
