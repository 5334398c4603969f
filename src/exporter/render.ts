// All families into one page of text. One that throws costs only itself: its metrics are left out, and
// cotenant_exporter_collector_success says so. Runs off the request path, in page-worker.ts.
import type { Snapshot } from '../agent/snapshot/snapshot.ts';
import { exporter } from './families/agent.ts';
import { container } from './families/container.ts';
import { device } from './families/device.ts';
import { enforcement } from './families/enforcement.ts';
import { foreign } from './families/foreign.ts';
import { activity } from './families/gpm.ts';
import { health } from './families/health.ts';
import { process } from './families/process.ts';
import { type Family, type Guard, metricSet } from './format/family.ts';
import { createExposition } from './format/text.ts';

/** In the order in which a page that is full has room for them. */
export const FAMILIES: readonly Family[] = [exporter, device, health, activity, enforcement, foreign, container];
export const PROCESS_FAMILY: Family = process;

/** The page, and which parts of it could not be made, and why. */
export type Rendering = { readonly text: string; readonly problems: readonly string[] };
export type PageMaker = (snapshot: Snapshot) => Rendering;

/**
 * Of a page, ten times what a node of eight full GPUs has. Families that come first are shown first, and what has ended after all
 * that lives: however many come and go, they push nothing out but each other.
 */
const MOST_SERIES = 20_000;

export function createPage(families: readonly Family[], mostSeries = MOST_SERIES): PageMaker {
  const exposition = createExposition();
  let room = mostSeries;
  const left = new Map(families.map(({ name }) => [name, 0]));
  const guardOf = (name: string): Guard => {
    const leftOut = (count: number) => void left.set(name, (left.get(name) ?? 0) + count);
    return {
      leftOut,
      take() {
        const fits = room > 0;
        if (fits) room -= 1;
        else leftOut(1);
        return fits;
      },
    };
  };
  const members = families.map((family) => ({ family, ...family.create(exposition, guardOf(family.name)) }));
  const set = metricSet(exposition);
  const dropped = set.counter('cotenant_exporter_series_dropped_total', 'Series left out of a page that was full.', [
    'family',
  ]);
  const success = set.gauge('cotenant_exporter_collector_success', '1 if this part of the page could be made.', [
    'collector',
  ]);
  const duration = set.gauge('cotenant_exporter_collector_duration_seconds', 'Time that this part of the page took.', [
    'collector',
  ]);
  const lastSuccess = set.gauge(
    'cotenant_exporter_collector_last_success_timestamp_seconds',
    'When this part was last made.',
    ['collector'],
  );
  const render = set.gauge('cotenant_exporter_render_duration_seconds', 'Time that the page before this one took.');
  const succeededMs = new Map<string, number>();
  let lastRenderSeconds: number | undefined;
  return (snapshot) => {
    const started = performance.now();
    const problems: string[] = [];
    set.clear();
    room = mostSeries;
    const took = new Map<string, number>();
    const failed = new Set<string>();
    const make = ({ family: { name }, clear }: (typeof members)[number], part: (snapshot: Snapshot) => void): void => {
      if (failed.has(name)) return;
      const before = performance.now();
      try {
        part(snapshot);
      } catch (error) {
        clear();
        problems.push(`the collector ${name} failed: ${String(error)}`);
        failed.add(name);
      }
      took.set(name, (took.get(name) ?? 0) + performance.now() - before);
    };
    for (const member of members) member.clear();
    for (const member of members) make(member, member.fill);
    // From the last family on: zeros of stops, which are the most, come last.
    for (const member of members.toReversed()) if (member.fillEnded) make(member, member.fillEnded);
    for (const { name } of families) {
      const good = !failed.has(name);
      if (good) succeededMs.set(name, snapshot.atMs);
      success({ collector: name }, good ? 1 : 0);
      duration({ collector: name }, (took.get(name) ?? 0) / 1000);
      const at = succeededMs.get(name);
      lastSuccess({ collector: name }, at === undefined ? undefined : at / 1000);
    }
    for (const [family, count] of left) dropped({ family }, count);
    render({}, lastRenderSeconds);
    const text = exposition.text();
    lastRenderSeconds = (performance.now() - started) / 1000;
    return { text, problems };
  };
}
