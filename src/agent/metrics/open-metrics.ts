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

export function toOpenMetrics(page: string): string {
  const out: string[] = [];
  let help = '';
  for (const line of page.split('\n')) {
    if (line === '') continue;
    if (!line.startsWith('#')) {
      out.push(line.endsWith(' Nan') ? `${line.slice(0, -3)}NaN` : line);
      continue;
    }
    const [, kind, name = '', rest = ''] = DESCRIBED.exec(line) ?? [];
    if (kind === 'HELP') {
      help = rest; // said after the type, under which the name depends on it
    } else if (kind === 'TYPE') {
      const counts = rest === 'counter';
      // A counter that is not called one would be refused with the whole page.
      const family = counts && name.endsWith('_total') ? name.slice(0, -'_total'.length) : name;
      out.push(`# TYPE ${family} ${counts && family === name ? 'unknown' : rest === 'untyped' ? 'unknown' : rest}`);
      const unit = rest === 'gauge' || counts ? UNITS.find((one) => family.endsWith(`_${one}`)) : undefined;
      if (unit !== undefined) out.push(`# UNIT ${family} ${unit}`);
      out.push(`# HELP ${family} ${help.replaceAll('"', '\\"')}`);
      help = '';
    }
  }
  return `${out.join('\n')}\n# EOF\n`;
}
