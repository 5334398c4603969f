// NVIDIA's documented rules of the CUDA driver (test/conformance), asked of the simulated driver bare and through the
// interposer.
import { execFileSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import test from 'ava';
import { askRules, complaints, FORMS, PROGRAM, readDrivers, readKnown, readRules } from './forms.ts';

/** For all rules in one form. */
const MOST_MS = 60_000;
const TITLES = {
  bare: 'bare, the simulated driver keeps each documented rule',
  granted: 'preloaded in a grant, each documented rule is kept',
  share: 'preloaded in a grant with a compute share, each documented rule is kept',
  mounted: 'mounted over the driver, each documented rule is kept',
};

const listed = readRules(execFileSync(PROGRAM, ['--list'], { encoding: 'utf8' }));

test('each rule has a name, a source and calls, each exception a reason', (t) => {
  const ids = listed.map(({ id }) => id);
  t.deepEqual(
    ids.filter((id, index) => ids.indexOf(id) !== index),
    [],
    'names given twice',
  );
  for (const { id, source, calls } of listed) {
    t.regex(
      source,
      /^(CUDA (Driver API|Runtime API|C\+\+ Programming Guide)|NVML API Reference|cuda\.core) \d+(\.\d+)?, \S/,
      id,
    );
    t.regex(calls, /^[a-z]\w+( [a-z]\w+)*$/, id);
  }
  for (const [id, { reason, forms }] of Object.entries(readKnown())) {
    t.true(ids.includes(id), `known.json names ${id}, which is no rule`);
    t.regex(reason, /^(simulator: \S|interposer: \S|program: \S|driver: as \S+ does$)/, id);
    t.true(
      (forms ?? FORMS).every((form) => FORMS.includes(form)),
      id,
    );
  }
});

test('what drivers answer otherwise is of rules, and in the page', (t) => {
  const ids = listed.map(({ id }) => id);
  const page = readFileSync(join(import.meta.dirname, '../../../docs/develop/conformance.md'), 'utf8');
  const rows = [...page.matchAll(/^\| `(\S+)` \| (\S+) \| (.*) \|$/gm)].map(([, ...row]) => row);
  const departures = [...readDrivers()].flatMap(([driver, { departures }]) =>
    Object.entries(departures).map(([id, answer]) => [id, driver, answer]),
  );
  for (const [id = ''] of departures) t.true(ids.includes(id), `${id} is no rule`);
  t.deepEqual(
    rows.map(([id, driver]) => `${id} ${driver}`),
    departures.map(([id, driver]) => `${id} ${driver}`),
  );
});

test('rules of later versions of CUDA are kept by a driver of such a version', async (t) => {
  const ids = Object.entries(readKnown())
    .filter(([, { reason }]) => reason === "simulator: the node's CUDA is 13.0")
    .map(([id]) => id);
  t.true(ids.length > 0);
  for (const form of FORMS) {
    const rules = await askRules(t, form, ids, 14000);
    t.deepEqual(rules.map(({ id }) => id).toSorted(), ids.toSorted());
    t.deepEqual(complaints(rules, {}, form), []);
  }
});

for (const form of FORMS) {
  test(TITLES[form], async (t) => {
    t.timeout(4 * MOST_MS);
    const from = performance.now();
    const rules = await askRules(t, form);
    const seconds = (performance.now() - from) / 1000;
    t.is(rules.length, listed.length);
    t.log(`${rules.filter(({ outcome }) => outcome === 'kept').length} of ${rules.length} in ${seconds.toFixed(1)} s`);
    t.deepEqual(complaints(rules, readKnown(), form), []);
  });
}
