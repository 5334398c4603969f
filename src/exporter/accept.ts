// Which format of the metrics page a scraper asks for.
import type { Format } from './render.ts';

/** From its Accept header: OpenMetrics where it is wanted at least as much as the text format. */
export function acceptedFormat(accept: string | undefined): Format {
  const weight = (type: string): number => {
    const weights = (accept ?? '').split(',').flatMap((part) => {
      const [name = '', ...parameters] = part.split(';').map((parameter) => parameter.trim());
      if (name !== type) return [];
      const version = parameters.find((parameter) => parameter.startsWith('version='))?.slice('version='.length);
      if (type === 'application/openmetrics-text' && version !== undefined && !/^(0\.0\.1|1\.0\.0)$/.test(version))
        return [];
      const q = parameters.find((parameter) => parameter.startsWith('q='));
      return [q === undefined ? 1 : Number(q.slice(2)) || 0];
    });
    return Math.max(0, ...weights);
  };
  const openmetrics = weight('application/openmetrics-text');
  return openmetrics > 0 && openmetrics >= weight('text/plain') ? 'openmetrics' : 'text';
}
