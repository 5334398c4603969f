// A page of the text format as OpenMetrics 1.0 has it: counters are named without `_total` in what describes them, units are
// told where a name ends in one, and the page ends with its mark. Samples stay as they are. Pure text.

export const OPEN_METRICS = 'application/openmetrics-text; version=1.0.0; charset=utf-8';

const UNITS = ['seconds', 'bytes', 'ratio', 'celsius', 'watts', 'joules', 'hertz'];
const DESCRIBED = /^# (HELP|TYPE) (\S+) (.*)$/;

/** What a scraper asked for by its Accept header: OpenMetrics where it is wanted at least as much as the text format. */
export function wantsOpenMetrics(accept: string | undefined): boolean {
  const weight = (type: string): number => {
    const weights = (accept ?? '').split(',').flatMap((part) => {
      const [name = '', ...parameters] = part.split(';').map((word) => word.trim());
      if (name !== type) return [];
      const version = parameters.find((word) => word.startsWith('version='))?.slice('version='.length);
      if (type === 'application/openmetrics-text' && version !== undefined && !/^(0\.0\.1|1\.0\.0)$/.test(version))
        return [];
      const q = parameters.find((word) => word.startsWith('q='));
      return [q === undefined ? 1 : Number(q.slice(2)) || 0];
    });
    return Math.max(0, ...weights);
  };
  const open = weight('application/openmetrics-text');
  return open > 0 && open >= weight('text/plain');
}

/** By what stands between two lines that describe: most of a page is samples, which stay as they are. */
export function toOpenMetrics(page: string): string {
  let out = '';
  let help = '';
  for (let at = 0; at < page.length; ) {
    if (page[at] !== '#') {
      const next = page.indexOf('\n#', at);
      out += samples(page.slice(at, next < 0 ? page.length : next + 1));
      if (next < 0) break;
      at = next + 1;
      continue;
    }
    const end = page.indexOf('\n', at);
    const line = page.slice(at, end < 0 ? page.length : end);
    at += line.length + 1;
    const [, kind, name = '', rest = ''] = DESCRIBED.exec(line) ?? [];
    if (kind === 'HELP') {
      help = rest; // said after the type, under which the name depends on it
    } else if (kind === 'TYPE') {
      out += described(name, rest, help);
      help = '';
    }
  }
  return `${out}# EOF\n`;
}

/** Without empty lines, each with its end. */
function samples(lines: string): string {
  let [from, to] = [0, lines.length];
  while (lines[from] === '\n') from += 1;
  while (to > from && lines[to - 1] === '\n') to -= 1;
  if (from === to) return '';
  const text = lines.slice(from, to).replaceAll(' Nan\n', ' NaN\n');
  return `${text.endsWith(' Nan') ? `${text.slice(0, -3)}NaN` : text}\n`;
}

function described(name: string, type: string, help: string): string {
  const counts = type === 'counter';
  // A counter that is not called one would be refused with the whole page.
  const family = counts && name.endsWith('_total') ? name.slice(0, -'_total'.length) : name;
  const unit = type === 'gauge' || counts ? UNITS.find((one) => family.endsWith(`_${one}`)) : undefined;
  return [
    `# TYPE ${family} ${(counts && family === name) || type === 'untyped' ? 'unknown' : type}\n`,
    unit === undefined ? '' : `# UNIT ${family} ${unit}\n`,
    `# HELP ${family} ${help.replaceAll('"', '\\"')}\n`,
  ].join('');
}
