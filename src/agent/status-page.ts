// The exporter's own page: cards, tenants, limits, use, and what was done to whom. Plain HTML that reads /status.json; it
// needs nothing from anywhere else.

export const STATUS_PAGE = `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Cotenant</title>
<style>
  :root { color-scheme: light dark; --line: #8884; --used: #2a78c8; --over: #c8402a; --free: #8882; }
  body { font: 14px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 68rem; padding: 0 1rem; }
  h1 { font-size: 1.3rem; margin: 0; } h2 { font-size: 1rem; margin: 2rem 0 .5rem; }
  p.note { margin: .2rem 0; opacity: .75; }
  table { border-collapse: collapse; width: 100%; } caption { text-align: left; }
  th, td { text-align: left; padding: .35rem .6rem .35rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
  th { font-weight: 600; } td.n { text-align: right; font-variant-numeric: tabular-nums; }
  .bar { position: relative; background: var(--free); height: .7rem; min-width: 8rem; border-radius: 2px; overflow: hidden; }
  .bar i { position: absolute; inset: 0 auto 0 0; background: var(--used); } .bar.over i { background: var(--over); }
  .bad { color: var(--over); font-weight: 600; }
  ol { padding-left: 1.2rem; }
</style>
</head>
<body>
<h1>Cotenant</h1>
<p class="note" id="note" role="status">loading</p>
<h2>Cards</h2>
<table id="cards"><thead><tr><th>Card</th><th>Memory used</th><th></th><th>Granted</th><th>Busy</th><th>Tenants</th></tr></thead><tbody></tbody></table>
<h2>Tenants</h2>
<table id="tenants"><thead><tr><th>Tenant</th><th>Card</th><th>Memory of its grant</th><th></th><th>Compute</th><th>Limit held by</th><th>State</th></tr></thead><tbody></tbody></table>
<h2>What was done</h2>
<ol id="actions"></ol>
<script>
const mib = (bytes) => bytes === undefined ? '-' : Math.round(bytes / 1048576).toLocaleString('en') + ' MiB';
const cell = (row, text, kind) => { const td = row.insertCell(); td.textContent = text; if (kind) td.className = kind; return td; };
const bar = (row, used, total) => {
  const td = row.insertCell(); const outer = document.createElement('div'); const inner = document.createElement('i');
  const share = total > 0 ? used / total : 0;
  outer.className = share > 1 ? 'bar over' : 'bar'; inner.style.width = Math.min(100, share * 100) + '%';
  outer.setAttribute('role', 'img'); outer.setAttribute('aria-label', Math.round(share * 100) + ' percent'); outer.append(inner); td.append(outer);
};
const fill = (id, entries, write) => {
  const body = document.querySelector('#' + id + ' tbody'); body.replaceChildren();
  for (const entry of entries) write(body.insertRow(), entry);
};
const show = (view) => {
  const note = document.getElementById('note');
  if (!view) { note.textContent = 'no sample yet'; return; }
  note.textContent = view.self.up
    ? 'driver ' + view.driverVersion + ', mode ' + view.self.mode + ''
    : 'the driver does not answer: ' + view.self.problem;
  note.className = view.self.up ? 'note' : 'note bad';
  fill('cards', view.devices, (row, d) => {
    cell(row, d.card.index + ' ' + d.card.name + (d.card.healthy ? '' : ' (lost)'), d.card.healthy ? '' : 'bad');
    const usable = d.card.totalBytes - (d.card.reservedBytes || 0);
    cell(row, mib(d.card.usedBytes) + ' of ' + mib(usable)); bar(row, d.card.usedBytes, usable);
    cell(row, mib(d.grantedBytes), 'n'); cell(row, (d.card.utilizationPercent ?? '-') + ' %', 'n'); cell(row, d.containers, 'n');
  });
  fill('tenants', view.containers, (row, c) => {
    cell(row, c.namespace + '/' + c.pod); cell(row, c.gpuIndex, 'n');
    cell(row, mib(c.usedBytes) + ' of ' + mib(c.limitBytes)); bar(row, c.usedBytes, c.limitBytes);
    cell(row, c.smPercent + ' %' + (c.coresPercent ? ' of ' + c.coresPercent + ' %' + (c.compute ? '' : ' (not enforced)') : ''), 'n');
    cell(row, c.fence);
    const words = [];
    if (c.over) words.push('over its grant');
    else if (c.usedBytes > c.limitBytes) words.push(mib(c.usedBytes - c.limitBytes) + ' above its grant, tolerated');
    if (c.bypassBytes > 0) words.push(mib(c.bypassBytes) + ' past the interposer');
    if (c.tampered) words.push('ledger damaged');
    cell(row, words.join(', ') || 'within', words.length ? 'bad' : '');
  });
  const list = document.getElementById('actions'); list.replaceChildren();
  for (const action of [...view.recent].reverse()) {
    const item = document.createElement('li');
    item.textContent = new Date(action.atMs).toLocaleTimeString() + ' ' + action.action + ': ' + action.message;
    list.append(item);
  }
  if (!view.recent.length) { const item = document.createElement('li'); item.textContent = 'nothing yet'; list.append(item); }
};
const look = async () => {
  try { show(await (await fetch('status.json')).json()); }
  catch (error) { const note = document.getElementById('note'); note.textContent = 'the exporter does not answer'; note.className = 'note bad'; }
  setTimeout(look, 1000);
};
look();
</script>
</body>
</html>
`;
