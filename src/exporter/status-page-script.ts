// The script of the status page, which runs in the browser: fetches /status.json every second and /history.json every
// few seconds, and fills tables and charts. Text from tenants is set as text, never as HTML.
import { POINTS } from '../agent/snapshot/history.ts';
import { STATUS_TOKEN_HEADER } from '../api/names.ts';

export const STATUS_SCRIPT = `
const MIB = 1048576;
const mib = (bytes) => bytes === undefined ? '-' : Math.round(bytes / MIB).toLocaleString('en') + ' MiB';
const gib = (bytes) => (bytes / MIB / 1024).toLocaleString('en', { maximumFractionDigits: 1 }) + ' GiB';
const percent = (value) => value === undefined ? '-' : value + ' %';
const element = (name, kind, text) => {
  const made = document.createElement(name);
  if (kind) made.className = kind;
  if (text !== undefined) made.textContent = text;
  return made;
};
const cell = (row, text, kind) => { const td = row.insertCell(); td.textContent = text; if (kind) td.className = kind; return td; };
const bar = (used, total, granted) => {
  const share = total > 0 ? used / total : 0;
  const outer = element('div', share > 1 ? 'bar over' : 'bar'); const inner = element('i');
  inner.style.width = Math.min(100, share * 100) + '%';
  outer.setAttribute('role', 'img'); outer.setAttribute('aria-label', Math.round(share * 100) + ' percent');
  outer.append(inner);
  if (granted !== undefined && total > 0) {
    const mark = element('b'); mark.style.left = Math.min(100, granted / total * 100) + '%'; mark.title = mib(granted) + ' granted';
    outer.append(mark);
  }
  return outer;
};
const SVG = 'http://www.w3.org/2000/svg';
const W = 160, H = 32;
/** A line chart of the last minutes, with gaps for missing values. Its top is the limit, or the largest value above
 * it. */
const spark = (values, limit, label, kind) => {
  const svg = document.createElementNS(SVG, 'svg');
  svg.setAttribute('viewBox', '0 0 ' + W + ' ' + H); svg.setAttribute('role', 'img'); svg.setAttribute('class', 'spark ' + kind);
  svg.setAttribute('aria-label', label);
  const title = document.createElementNS(SVG, 'title'); title.textContent = label; svg.append(title);
  const known = values.filter((value) => value !== null);
  const top = Math.max(limit, ...known, 1);
  const x = (at) => W - (POINTS > 1 ? (values.length - 1 - at) / (POINTS - 1) * W : 0);
  const y = (value) => H - 1 - value / top * (H - 2);
  const runs = []; let run = [];
  values.forEach((value, at) => {
    if (value === null) { if (run.length) runs.push(run); run = []; } else run.push([x(at), y(value)]);
  });
  if (run.length) runs.push(run);
  for (const points of runs) {
    const area = document.createElementNS(SVG, 'path');
    const line = points.map(([px, py]) => px.toFixed(1) + ' ' + py.toFixed(1)).join(' L ');
    area.setAttribute('d', 'M ' + points[0][0].toFixed(1) + ' ' + H + ' L ' + line + ' L ' + points.at(-1)[0].toFixed(1) + ' ' + H + ' Z');
    area.setAttribute('class', 'area');
    const path = document.createElementNS(SVG, 'path');
    path.setAttribute('d', 'M ' + line + (points.length === 1 ? ' l .1 0' : '')); path.setAttribute('class', 'line');
    svg.append(area, path);
  }
  if (limit > 0 && limit < top) {
    const mark = document.createElementNS(SVG, 'path');
    mark.setAttribute('d', 'M 0 ' + y(limit).toFixed(1) + ' H ' + W); mark.setAttribute('class', 'limit'); svg.append(mark);
  }
  return svg;
};
let past = { gpus: {}, containers: {} };
const POINTS = ${POINTS};
/** Charts of each line of the past: drawn once until the past is fetched again, as there may be hundreds. */
const drawn = new WeakMap();
const sparks = (row, line, limit, cores) => {
  const kept = line && drawn.get(line);
  if (kept && kept.limit === limit && kept.cores === cores) {
    for (const chart of kept.charts) row.insertCell().append(chart);
    return;
  }
  const used = line?.usedBytes ?? [], busy = line?.busyPercent ?? [];
  const most = (values, unit) => {
    const known = values.filter((value) => value !== null);
    return ' over the last 10 minutes: ' + (known.length ? 'at most ' + unit(Math.max(0, ...known)) : 'unknown');
  };
  const charts = [spark(used, limit, 'memory' + most(used, mib), 'memory'), spark(busy, cores || 100, 'compute' + most(busy, percent), 'compute')];
  for (const chart of charts) row.insertCell().append(chart);
  if (line) drawn.set(line, { limit, cores, charts });
};
const fill = (id, entries, write) => {
  const table = document.getElementById(id); const body = table.tBodies[0]; body.replaceChildren();
  const titles = [...table.tHead.rows[0].cells].map((head) => head.textContent);
  for (const entry of entries) {
    const row = body.insertRow();
    write(row, entry);
    // Narrow windows show it instead of the table head.
    [...row.cells].forEach((td, at) => { td.dataset.title = titles[at]; });
  }
  if (!entries.length) { const td = body.insertRow().insertCell(); td.colSpan = table.tHead.rows[0].cells.length; td.textContent = 'none'; td.className = 'quiet'; }
};
const memory = (row, used, total, granted) => {
  const td = cell(row, mib(used) + ' of ' + mib(total), 'm'); td.append(bar(used, total, granted));
};
const stateOf = (c) => {
  const states = [];
  if (c.withoutGpus) states.push('GPUs missing');
  if (c.over) states.push('over its memory grant');
  else if (c.usedBytes > c.limitBytes) states.push(mib(c.usedBytes - c.limitBytes) + ' over its grant, tolerated');
  if (c.bypassBytes > 0) states.push(mib(c.bypassBytes) + ' bypass the interposer');
  if (c.overShare) states.push('over its compute limit');
  if (c.tampered) states.push('ledger damaged');
  return states;
};
const containerName = (c) => c.namespace + '/' + c.pod + '/' + c.container;
/** A grant of cotenant run has only a name. */
const nameOf = (c) => c.podUid === '' ? c.namespace + '/' + c.pod : containerName(c);
/** What is wrong, so that it is read first; a number of GPUs and tenants, and the names of the first. */
const SHOWN = 3;
const listed = (names) => names.slice(0, SHOWN).join(', ') + (names.length > SHOWN ? ' and ' + (names.length - SHOWN) + ' more' : '');
const wrongIn = (snapshot) => {
  const gpus = snapshot.devices.filter((d) => d.fault || !d.gpu.healthy).map((d) => 'GPU ' + d.gpu.index);
  const tenants = snapshot.containers.filter((c) => stateOf(c).length).map((c) => nameOf(c) + ' ' + stateOf(c)[0]);
  return [gpus.length ? gpus.length + ' of ' + snapshot.devices.length + ' GPUs with a fault: ' + listed(gpus) : '', tenants.length ? tenants.length + ' of ' + snapshot.containers.length + ' containers: ' + listed(tenants) : '']
    .filter((text) => text !== '').join('; ');
};
const FENCES = { interposer: 'good', driver: 'good', agent: 'fair', none: 'poor' };
const show = (snapshot) => {
  const note = document.getElementById('note');
  if (!snapshot) { note.textContent = 'no sample yet'; return; }
  const age = Math.max(0, Math.round((Date.now() - snapshot.atMs) / 1000));
  note.textContent = snapshot.self.up
    ? 'driver ' + snapshot.driverVersion + ', mode ' + snapshot.self.mode + ', sampled ' + (age < 2 ? 'just now' : age + ' s ago')
    : 'the driver does not answer: ' + snapshot.self.problem;
  note.className = snapshot.self.up ? 'note' : 'note bad';
  const wrong = wrongIn(snapshot), well = document.getElementById('well');
  const text = wrong || (snapshot.self.up ? 'all well' : '');
  // Read aloud when it changes, and not each second.
  if (well.textContent !== text) well.textContent = text;
  well.className = wrong ? 'bad' : 'quiet';
  fill('gpus', snapshot.devices, (row, d) => {
    const fault = d.fault ? ' (Xid ' + d.fault.xid + ')' : d.gpu.healthy ? '' : ' (lost)';
    const first = cell(row, d.gpu.index + ' ' + d.gpu.name + fault, fault ? 'name bad' : 'name');
    if (d.fault) first.title = 'Xid ' + d.fault.xid + ' at ' + new Date(d.fault.atMs).toISOString() + ': cordoned until it is reset';
    const usable = d.gpu.totalBytes === undefined ? undefined : d.gpu.totalBytes - (d.gpu.reservedBytes || 0);
    if (usable === undefined) cell(row, d.gpu.divided ? 'in MIG instances' : 'unknown', 'm quiet');
    else memory(row, d.gpu.usedBytes, usable, d.grantedBytes);
    cell(row, mib(d.grantedBytes), 'n'); cell(row, percent(d.gpu.utilizationPercent), 'n');
    sparks(row, past.gpus[d.gpu.uuid], usable ?? 0);
    cell(row, d.containers ?? '-', 'n'); cell(row, d.gpu.temperatureC === undefined ? '-' : d.gpu.temperatureC + ' °C', 'n');
    cell(row, d.gpu.powerMilliwatts === undefined ? '-' : Math.round(d.gpu.powerMilliwatts / 1000) + ' W', 'n');
  });
  // Those with something wrong first.
  const tenants = snapshot.containers.toSorted((a, b) => (stateOf(b).length > 0) - (stateOf(a).length > 0));
  fill('tenants', tenants, (row, c) => {
    const td = cell(row, nameOf(c), 'name'); td.title = 'container ' + c.container + ', grant ' + c.grantId;
    cell(row, c.gpuIndex ?? '-', 'n');
    if (c.memoryKnown) memory(row, c.usedBytes, c.limitBytes); else cell(row, 'unknown, of ' + mib(c.limitBytes), 'm');
    cell(row, percent(c.smPercent) + (c.coresPercent ? ' of ' + c.coresPercent + ' %' + (c.compute ? '' : ' (not enforced)') : '') + (c.computePolicy === 'native' ? '' : ' ' + c.computePolicy), 'n');
    sparks(row, past.containers[c.grantId + ' ' + c.gpuUuid], c.limitBytes, c.coresPercent);
    row.insertCell().append(element('span', 'fence ' + (FENCES[c.fence] ?? 'fair'), c.fence));
    cell(row, c.enforcement.mode + (c.enforcement.by === 'node' ? '' : ', ' + c.enforcement.by));
    const states = stateOf(c);
    cell(row, states.join(', ') || (c.memoryKnown ? 'within limits' : 'unknown'), states.length ? 'bad' : c.memoryKnown ? '' : 'quiet');
  });
  document.getElementById('assigned-section').hidden = !snapshot.assigned.length;
  const usableOf = (uuid) => {
    const gpu = snapshot.devices.find((d) => d.gpu.uuid === uuid)?.gpu;
    return gpu?.totalBytes === undefined ? 0 : gpu.totalBytes - (gpu.reservedBytes || 0);
  };
  fill('assigned', snapshot.assigned, (row, a) => {
    cell(row, containerName(a), 'name');
    cell(row, a.gpuIndex, 'n'); cell(row, a.mode); cell(row, mib(a.usedBytes), 'n'); cell(row, percent(a.smPercent), 'n');
    sparks(row, past.containers[containerName(a) + ' ' + a.gpuUuid], usableOf(a.gpuUuid));
    cell(row, a.processes.length, 'n');
  });
  document.getElementById('foreign-section').hidden = !snapshot.foreign.length;
  fill('foreign', snapshot.foreign, (row, f) => {
    cell(row, (f.namespace || f.pod ? f.namespace + '/' + f.pod + ' ' : '') + (f.container || f.containerId.slice(0, 12)), 'name');
    cell(row, f.gpuIndex, 'n'); cell(row, mib(f.usedBytes), 'n bad'); cell(row, percent(f.smPercent), 'n');
    sparks(row, past.containers[(f.containerId || f.podUid) + ' ' + f.gpuUuid], usableOf(f.gpuUuid));
    cell(row, f.processes, 'n');
  });
  const list = document.getElementById('actions'); list.replaceChildren();
  for (const action of [...snapshot.recent].reverse()) {
    const item = element('li');
    item.append(element('time', '', new Date(action.atMs).toLocaleTimeString('en-GB')), ' ', element('strong', 'act ' + action.action, action.action));
    item.append(': ' + action.message + (action.result ? ' (' + action.result + (action.detail ? ': ' + action.detail : '') + ')' : ''));
    list.append(item);
  }
  if (!snapshot.recent.length) list.append(element('li', 'quiet', 'none'));
};
let token = '';
const form = document.getElementById('open');
form.addEventListener('submit', (event) => {
  event.preventDefault();
  token = form.elements.token.value.trim();
});
const get = async (path) => {
  const answer = await fetch(path, token ? { headers: { '${STATUS_TOKEN_HEADER}': token } } : {});
  form.hidden = answer.status !== 401 && answer.status !== 403;
  if (!answer.ok) throw new Error((await answer.text()).trim());
  return answer.json();
};
let updates = 0;
const update = async () => {
  try {
    if (updates++ % 5 === 0) past = await get('history.json');
    show(await get('status.json'));
  } catch (error) {
    const note = document.getElementById('note'); note.className = 'note bad';
    note.textContent = error instanceof TypeError ? 'the exporter does not answer' : error.message;
  }
  setTimeout(update, 1000);
};
update();
`;
