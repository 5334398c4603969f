// All families into one page of text. One that throws costs only itself: its metrics are left out, and
// cotenant_exporter_collector_success says so. Runs off the request path, in page-worker.ts.
import type { View } from '../view.ts';
import { createExposition } from './exposition.ts';
import { activity } from './families/activity.ts';
import { container } from './families/container.ts';
import { device } from './families/device.ts';
import { enforcement } from './families/enforcement.ts';
import { exporter } from './families/exporter.ts';
import { foreign } from './families/foreign.ts';
import { health } from './families/health.ts';
import { process } from './families/process.ts';
import { type Family, type Guard, metricSet } from './family.ts';

export const FAMILIES: readonly Family[] = [exporter, device, health, activity, container, enforcement, foreign];
export const PROCESS_FAMILY: Family = process;

/** The page, and which parts of it could not be made, and why. */
export type Rendering = { readonly text: string; readonly problems: readonly string[] };
export type PageMaker = (view: View) => Rendering;

/** Of a page, ten times what a node of eight full cards has. Families that come first are shown first. */
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
  return (view) => {
    const started = performance.now();
    const problems: string[] = [];
    set.clear();
    room = mostSeries;
    for (const { family, fill, clear } of members) {
      const before = performance.now();
      clear();
      let good = 1;
      try {
        fill(view);
        succeededMs.set(family.name, view.atMs);
      } catch (error) {
        clear();
        problems.push(`the collector ${family.name} failed: ${String(error)}`);
        good = 0;
      }
      success({ collector: family.name }, good);
      duration({ collector: family.name }, (performance.now() - before) / 1000);
      const at = succeededMs.get(family.name);
      lastSuccess({ collector: family.name }, at === undefined ? undefined : at / 1000);
    }
    for (const [family, count] of left) dropped({ family }, count);
    render({}, lastRenderSeconds);
    const text = exposition.text();
    lastRenderSeconds = (performance.now() - started) / 1000;
    return { text, problems };
  };
}
