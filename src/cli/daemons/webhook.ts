// `cotenant webhook`: admission in the foreground.
import type { WebhookConfiguration } from '../../../webhook/config.ts';
import { startWebhook } from '../../../webhook/server.ts';
import type { RulesSource, RulesWatch } from '../../../webhook/watch-rules.ts';
import type { SystemsWatch } from '../../../webhook/watch-systems.ts';
import { isObject } from '../../common/json.ts';
import type { Logger } from '../../common/logger.ts';
import { given } from '../../request/rules/namespace-rules.ts';
import type { CertificateSource } from '../../serving/http-server.ts';
import { fromFiles } from '../../serving/tls-files.ts';
import { type Command, flag, type Parsed, port, text, UsageError, whole } from '../lib/command.ts';
import { LOG_OPTIONS, loggerOf } from '../lib/log-options.ts';
import { runUntilSignal } from '../lib/run-until-signal.ts';
import { configurationOf, readSettings } from '../lib/webhook-configuration.ts';

export const webhook: Command = {
  name: 'webhook',
  summary: 'Admission: gives pods that ask for a share of a GPU what they need for it, or refuses them with a reason.',
  usage:
    '[--config FILE] [--live-rules NAMESPACE/NAME] [CERTIFICATE] [--foreign-systems] [--host ADDRESS] [--port N] [--drain SECONDS] [--health-port N]',
  options: {
    config: { short: 'c', value: 'FILE', help: 'settings, YAML or JSON (docs/operate/webhook.md)' },
    'live-rules': {
      value: 'NAMESPACE/NAME',
      help: 'ConfigMap whose rules, namespaces and pools take the place of those of --config, followed while it runs',
    },
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
      help: 'how long to keep serving after a stop signal, at least; then until clients have closed their connections, 92 s at most (default 0: stop at once)',
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
    const settings = file === undefined ? {} : (readSettings(file) ?? {});
    const configuration = configurationOf(settings, file ?? '');
    const live = placeOf(parsed, 'live-rules');
    const certificate = await certificateOf(parsed);
    const host = text(parsed, 'host') ?? (certificate ? undefined : '127.0.0.1');
    const drainMs = (whole(parsed, 'drain', 0, 300) ?? 0) * 1000;
    const log = loggerOf(parsed, 'webhook');
    const start = async () => {
      const [systems, rules] = await Promise.all([
        flag(parsed, 'foreign-systems') ? systemsWatch(log) : undefined,
        live && isObject(settings) ? rulesWatch({ ...live, settings, configuration }, log) : undefined,
      ]);
      const current = (): WebhookConfiguration => ({
        ...(rules?.configuration() ?? configuration),
        ...(systems && { systems: systems.systems() }),
        ...(rules && { checkLiveRules: rules.check }),
      });
      const webhook = await startWebhook({
        logger: log,
        decisions: log.component('admission'),
        timeouts: { drainMs },
        configuration: systems || rules ? current : () => configuration,
        port: port(parsed, 'port') ?? 8443,
        ...given({ host, certificate, healthPort: port(parsed, 'health-port'), rulesAreValid: rules?.valid }),
      });
      const close = async () => {
        await webhook.close();
        await Promise.all([systems?.close(), rules?.close()]);
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

async function rulesWatch(source: RulesSource, log: Logger): Promise<RulesWatch> {
  const [config, { watchRules }] = await Promise.all([apiConfig(), import('../../../webhook/watch-rules.ts')]);
  return watchRules(config, source, log);
}

function placeOf(parsed: Parsed, option: string): { readonly namespace: string; readonly name: string } | undefined {
  const place = text(parsed, option);
  if (place === undefined) return undefined;
  const [, namespace, name] = /^([^/]+)\/([^/]+)$/.exec(place) ?? [];
  if (namespace === undefined || name === undefined) throw new UsageError(`--${option} ${place}: want NAMESPACE/NAME`);
  return { namespace, name };
}

async function certificateOf(parsed: Parsed): Promise<CertificateSource | undefined> {
  const [certFile, keyFile] = [text(parsed, 'cert'), text(parsed, 'key')];
  const place = placeOf(parsed, 'secret');
  const [service, registration] = ['service', 'registration'].map((name) => text(parsed, name));
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
  const [config, { fromSecret }] = await Promise.all([apiConfig(), import('../../../webhook/certificates/secret.ts')]);
  return fromSecret(config, { namespace: place.namespace, secret: place.name, service, registration });
}
