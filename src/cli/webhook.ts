// `cotenant webhook`: admission in the foreground.
import { readFileSync } from 'node:fs';
import { parse as parseYaml } from 'yaml';
import { parseConfiguration } from '../../webhook/configuration.ts';
import { startWebhook } from '../../webhook/server.ts';
import { formatProblem } from '../request/problem.ts';
import { type Command, text, UsageError } from './command.ts';
import { untilSignal } from './wait.ts';

export const webhook: Command = {
  name: 'webhook',
  summary: 'Admission: gives pods that ask for a share of a GPU what they need for it, or refuses them with a reason.',
  usage: '[--config FILE] [--cert FILE --key FILE] [--host ADDRESS] [--port N] [--health-port N]',
  options: {
    config: { type: 'string', short: 'c', value: 'FILE', help: 'settings, YAML or JSON (docs/webhook.md)' },
    cert: {
      type: 'string',
      value: 'FILE',
      help: 'certificate in PEM, followed when it changes; without one a self-signed one for loopback is made',
    },
    key: { type: 'string', value: 'FILE', help: 'its private key' },
    host: {
      type: 'string',
      value: 'ADDRESS',
      help: 'address to listen on (default 127.0.0.1 with a self-signed certificate, else all)',
    },
    port: { type: 'string', short: 'p', value: 'N', help: 'port (default 8443)' },
    'health-port': { type: 'string', value: 'N', help: 'plain port for /healthz, /readyz and /metrics' },
  },
  async run(parsed) {
    const file = text(parsed, 'config');
    const read = parseConfiguration(file === undefined ? undefined : parseFile(file));
    if (!read.ok) throw new UsageError(`${file}:\n  ${read.problems.map(formatProblem).join('\n  ')}`);
    const [certFile, keyFile] = [text(parsed, 'cert'), text(parsed, 'key')];
    if ((certFile === undefined) !== (keyFile === undefined)) throw new UsageError('--cert and --key go together');
    const certificate = certFile !== undefined && keyFile !== undefined ? { certFile, keyFile } : undefined;
    const host = text(parsed, 'host') ?? (certificate ? undefined : '127.0.0.1');
    const healthPort = portOf(text(parsed, 'health-port'), '--health-port');
    const running = await startWebhook({
      configuration: read.value,
      port: portOf(text(parsed, 'port'), '--port') ?? 8443,
      ...(host === undefined ? {} : { host }),
      ...(certificate === undefined ? {} : { certificate }),
      ...(healthPort === undefined ? {} : { healthPort }),
    });
    console.error(
      `admission on ${running.url}${running.healthPort === undefined ? '' : `, probes on port ${running.healthPort}`}`,
    );
    if (!certificate) console.error('self-signed certificate, for development only');
    await untilSignal();
    await running.close();
    return 0;
  },
};

function parseFile(path: string): unknown {
  try {
    return parseYaml(readFileSync(path, 'utf8'));
  } catch (error) {
    throw new UsageError(`${path}: ${(error as Error).message}`);
  }
}

function portOf(value: string | undefined, option: string): number | undefined {
  if (value === undefined) return undefined;
  const port = Number(value);
  if (!/^\d+$/.test(value) || port > 65535) throw new UsageError(`${option} ${value}: want 0 to 65535`);
  return port;
}
