// `cotenant webhook`: admission in the foreground.
import { DEFAULT_CONFIGURATION } from '../../../webhook/config.ts';
import { startWebhook } from '../../../webhook/server.ts';
import type { SystemsWatch } from '../../../webhook/watch-systems.ts';
import type { Logger } from '../../common/logger.ts';
import { given } from '../../request/rules/namespace-rules.ts';
import type { CertificateSource } from '../../serving/http-server.ts';
import { fromFiles } from '../../serving/tls-files.ts';
import { type Command, flag, type Parsed, port, text, UsageError, whole } from '../lib/command.ts';
import { LOG_OPTIONS, loggerOf } from '../lib/log-options.ts';
import { runUntilSignal } from '../lib/run-until-signal.ts';
import { readConfiguration } from '../lib/webhook-configuration.ts';

export const webhook: Command = {
  name: 'webhook',
  summary: 'Admission: gives pods that ask for a share of a GPU what they need for it, or refuses them with a reason.',
  usage:
    '[--config FILE] [CERTIFICATE] [--foreign-systems] [--host ADDRESS] [--port N] [--drain SECONDS] [--health-port N]',
  options: {
    config: { short: 'c', value: 'FILE', help: 'settings, YAML or JSON (docs/operate/webhook.md)' },
    cert: {
      value: 'FILE',
      help: 'certificate in PEM, reloaded when it changes',
    },
    key: { value: 'FILE', help: 'its private key' },
    secret: {
      value: 'NAMESPACE/NAME',
      help: 'Secret of a cluster in which all replicas keep a certificate that they make and renew themselves',
    },
    service: { value: 'NAME', help: 'Service of that namespace through which API servers call' },
    registration: {
      value: 'NAME',
      help: 'mutating and validating webhook configuration into which its authority is written',
    },
    host: {
      value: 'ADDRESS',
      help: 'address to listen on (default 127.0.0.1 with a self-signed certificate, else all)',
    },
    'foreign-systems': {
      help: 'look for other GPU-sharing systems in the cluster, and leave their pods to them (rule foreignSystems)',
    },
    port: { short: 'p', value: 'N', help: 'port (default 8443)' },
    drain: {
      value: 'SECONDS',
      help: 'how long to keep serving after a stop signal, closing each connection after its answer (default 0)',
    },
    'health-port': { value: 'N', help: 'plain port for /healthz, /readyz and /metrics' },
    ...LOG_OPTIONS,
  },
  notes: [
    'CERTIFICATE is either --cert and --key, or --secret, --service and --registration. Without any a self-signed one for',
    'loopback is made, for development.',
  ].join('\n'),
  async run(parsed) {
    const file = text(parsed, 'config');
    const configuration = file === undefined ? DEFAULT_CONFIGURATION : readConfiguration(file);
    const certificate = await certificateOf(parsed);
    const host = text(parsed, 'host') ?? (certificate ? undefined : '127.0.0.1');
    const drainMs = (whole(parsed, 'drain', 0, 300) ?? 0) * 1000;
    const log = loggerOf(parsed, 'webhook');
    const start = async () => {
      const watch = flag(parsed, 'foreign-systems') ? await systemsWatch(log) : undefined;
      const webhook = await startWebhook({
        logger: log,
        timeouts: { drainMs },
        configuration: () => (watch ? { ...configuration, systems: watch.systems() } : configuration),
        port: port(parsed, 'port') ?? 8443,
        ...given({ host, certificate, healthPort: port(parsed, 'health-port') }),
      });
      const close = async () => {
        await webhook.close();
        await watch?.close();
      };
      return { ...webhook, close };
    };
    return runUntilSignal(start, (running) => {
      const probes = running.healthPort === undefined ? '' : `, probes on port ${running.healthPort}`;
      log.info(`admission on ${running.url}${probes}`);
      if (!certificate) log.warn('self-signed certificate, for development only');
    });
  },
};

// Only what asks the API server loads its client.
const apiConfig = async () => (await import('../../kube/config.ts')).loadApiConfig();

async function systemsWatch(log: Logger): Promise<SystemsWatch> {
  const [config, { watchSystems }] = await Promise.all([apiConfig(), import('../../../webhook/watch-systems.ts')]);
  return watchSystems(config, log);
}

async function certificateOf(parsed: Parsed): Promise<CertificateSource | undefined> {
  const [certFile, keyFile] = [text(parsed, 'cert'), text(parsed, 'key')];
  const [place, service, registration] = ['secret', 'service', 'registration'].map((name) => text(parsed, name));
  const managed = [place, service, registration].filter((value) => value !== undefined);
  if ((certFile === undefined) !== (keyFile === undefined)) throw new UsageError('--cert and --key go together');
  if (certFile !== undefined && keyFile !== undefined) {
    if (managed.length > 0) throw new UsageError('--cert and --key, or --secret, --service and --registration');
    return fromFiles({ certFile, keyFile });
  }
  if (managed.length === 0) return undefined;
  if (place === undefined || service === undefined || registration === undefined) {
    throw new UsageError('--secret, --service and --registration go together');
  }
  const [, namespace, secret] = /^([^/]+)\/([^/]+)$/.exec(place) ?? [];
  if (namespace === undefined || secret === undefined) throw new UsageError(`--secret ${place}: want NAMESPACE/NAME`);
  const [config, { fromSecret }] = await Promise.all([apiConfig(), import('../../../webhook/certificates/secret.ts')]);
  return fromSecret(config, { namespace, secret, service, registration });
}
