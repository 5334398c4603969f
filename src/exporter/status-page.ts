// The status page: GPUs, tenants, limits, use over the last minutes, and actions of the agent. One HTML file without
// external resources; status-page-script.ts fills it.
import { STATUS_SCRIPT } from './status-page-script.ts';

const STYLE = `
  :root { color-scheme: light dark; --line: #8883; --used: #2a78c8; --busy: #7a55c0; --over: #c8402a; --free: #8882; --good: #2c8a4b; --fair: #b87a10; }
  * { box-sizing: border-box; }
  body { font: 14px/1.45 system-ui, sans-serif; margin: 1.5rem auto; max-width: 78rem; padding: 0 1.25rem; }
  header { display: flex; gap: 1rem; align-items: baseline; flex-wrap: wrap; border-bottom: 1px solid var(--line); padding-bottom: .6rem; }
  h1 { font-size: 1.3rem; margin: 0; } h2 { font-size: 1rem; margin: 1.8rem 0 .4rem; }
  p.note { margin: 0; opacity: .8; } p.note.bad { opacity: 1; }
  p#well { margin: .6rem 0 0; } .scroll { overflow-x: auto; } .few { max-height: 6rem; overflow-y: auto; }
  table { border-collapse: collapse; width: 100%; }
  th, td { text-align: left; padding: .4rem .9rem .4rem 0; border-bottom: 1px solid var(--line); vertical-align: middle; }
  th { font-weight: 600; font-size: .85em; opacity: .75; white-space: nowrap; vertical-align: bottom; }
  td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
  td.name { overflow-wrap: anywhere; min-width: 8rem; }
  td { font-variant-numeric: tabular-nums; } td.m { white-space: nowrap; }
  .quiet { opacity: .6; }
  .bar { position: relative; background: var(--free); height: .55rem; min-width: 10rem; margin-top: .2rem; border-radius: 3px; }
  .bar i { position: absolute; inset: 0 auto 0 0; background: var(--used); border-radius: 3px; } .bar.over i { background: var(--over); }
  .bar b { position: absolute; top: -2px; bottom: -2px; width: 2px; background: var(--fair); }
  .spark { width: 160px; height: 32px; display: block; background: var(--free); border-radius: 3px; }
  .spark .line { fill: none; stroke: var(--used); stroke-width: 1.5; stroke-linecap: round; } .spark .area { fill: var(--used); opacity: .2; }
  .spark.compute .line { stroke: var(--busy); } .spark.compute .area { fill: var(--busy); }
  .spark .limit { stroke: var(--over); stroke-width: 1; stroke-dasharray: 3 2; }
  .fence { border: 1px solid currentColor; border-radius: 1em; padding: 0 .6em; font-size: .9em; white-space: nowrap; }
  .fence.good { color: var(--good); } .fence.fair { color: var(--fair); } .fence.poor { color: var(--over); }
  .bad { color: var(--over); font-weight: 600; }
  ol { list-style: none; padding: 0; margin: 0; } ol li { padding: .3rem 0; border-bottom: 1px solid var(--line); overflow-wrap: anywhere; }
  @media (max-width: 64rem) {
    thead { display: none; } .scroll { overflow-x: visible; }
    tr { display: flex; flex-wrap: wrap; gap: .5rem 1.4rem; padding: .6rem 0; border-bottom: 1px solid var(--line); }
    td, td.n { border: 0; padding: 0; text-align: left; white-space: normal; } td.name { flex-basis: 100%; font-weight: 600; }
    td::before { content: attr(data-title); display: block; font-size: .8em; font-weight: 400; opacity: .7; } td.name::before { display: none; }
  }
  time { opacity: .6; font-variant-numeric: tabular-nums; } .act.kill, .act.terminate, .act.stuck { color: var(--over); }
`;

const head = (...titles: readonly string[]): string => {
  const cells = titles.map((title) =>
    title.startsWith('#') ? `<th class="n">${title.slice(1)}</th>` : `<th>${title}</th>`,
  );
  return `<thead><tr>${cells.join('')}</tr></thead><tbody></tbody>`;
};
const table = (id: string, ...titles: readonly string[]): string =>
  `<div class="scroll" tabindex="0" role="region" aria-labelledby="${id}-title"><table id="${id}">${head(...titles)}</table></div>`;

const PAST = ['Memory, 10 min', 'Compute, 10 min'] as const;

export const STATUS_PAGE = `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Cotenant</title>
<style>${STYLE}</style>
</head>
<body>
<header><h1>Cotenant</h1><p class="note" id="note" role="status">loading</p></header>
<p id="well" role="status"></p>
<form id="open" hidden><label>Token <input name="token" type="password" autocomplete="off" required></label> <button>Open</button></form>
<h2 id="gpus-title">GPUs</h2>
${table('gpus', 'GPU', 'Memory used', '#Granted', '#Busy', ...PAST, '#Containers', '#Temperature', '#Power')}
<h2 id="actions-title">Actions</h2>
<div class="scroll few" tabindex="0" role="region" aria-labelledby="actions-title"><ol id="actions"></ol></div>
<h2 id="tenants-title">Containers</h2>
${table('tenants', 'Container', '#GPU', 'Memory', '#Compute', ...PAST, 'Isolation', 'Enforcement', 'State')}
<section id="assigned-section" hidden>
<h2 id="assigned-title">GPUs of other device plugins</h2>
${table('assigned', 'Container', '#GPU', 'Mode', '#Memory', '#Compute', ...PAST, '#Processes')}
</section>
<section id="foreign-section" hidden>
<h2 id="foreign-title">Use without a grant</h2>
${table('foreign', 'Container', '#GPU', '#Memory', '#Compute', ...PAST, '#Processes')}
</section>
<script>${STATUS_SCRIPT}</script>
</body>
</html>
`;
