// `cotenant scheduler`: the extender of kube-scheduler in the foreground.

import { isIP } from 'node:net';
import { hostname } from 'node:os';
import { KubeConfig } from '@kubernetes/client-node';
import { PLACEMENTS } from '../../api/request.ts';
import { type SchedulerOptions, startScheduler } from '../../scheduler/start.ts';
import { type Command, text, UsageError } from '../lib/command.ts';
import { LOG_OPTIONS, loggerOf } from '../lib/log-options.ts';
import { runUntilSignal } from '../lib/run-until-signal.ts';

export const scheduler: Command = {
  name: 'scheduler',
  summary:
    'Extends kube-scheduler: chooses the GPUs of pods that request a share, and writes the choice as it binds them.',
  usage:
    '--lease NAMESPACE/NAME [--lease-holder HOLDER] [--host ADDRESS --cert FILE --key FILE --client-ca FILE] [--port N]',
  options: {
    lease: { type: 'string', value: 'NAMESPACE/NAME', help: 'the Lease; only its holder binds pods. Required' },
    'lease-holder': {
      type: 'string',
      value: 'HOLDER',
      help: 'sidecar (default): the kube-scheduler in the same pod holds the Lease; self: this process does',
    },
    host: { type: 'string', value: 'ADDRESS', help: 'address to listen on (default 127.0.0.1)' },
    port: { type: 'string', short: 'p', value: 'N', help: 'port (default 9840)' },
    cert: {
      type: 'string',
      value: 'FILE',
      help: 'certificate in PEM; with --key and --client-ca, for any other address',
    },
    key: { type: 'string', value: 'FILE', help: 'its private key' },
    'client-ca': { type: 'string', value: 'FILE', help: 'authority that must have signed the certificates of callers' },
    'health-port': { type: 'string', value: 'N', help: 'plain port for /healthz, /readyz and /metrics' },
    placement: {
      type: 'string',
      value: 'HOW',
      help: 'binpack (default) or spread, for pods that choose none; fragmentation is binpack',
    },
    'overcommitted-after': {
      type: 'string',
      value: 'SECONDS',
      help: 'evict pods that have not started from a GPU that is overcommitted for so long (default 15)',
    },
    kubeconfig: { type: 'string', value: 'FILE', help: 'how to reach the API server (default: as any pod does)' },
    ...LOG_OPTIONS,
  },
  async run(parsed) {
    const host = text(parsed, 'host') ?? '127.0.0.1';
    const [certFile, keyFile, clientCaFile] = [text(parsed, 'cert'), text(parsed, 'key'), text(parsed, 'client-ca')];
    const given = [certFile, keyFile, clientCaFile].filter((one) => one !== undefined).length;
    if (given !== 0 && given !== 3) throw new UsageError('--cert, --key and --client-ca go together');
    if (given === 0 && !isLoopback(host)) {
      throw new UsageError(
        `--host ${host}: an address other than loopback needs --cert, --key and --client-ca, because callers decide about GPUs`,
      );
    }
    const tls = certFile && keyFile && clientCaFile ? { certFile, keyFile, clientCaFile } : undefined;
    const [namespace, name, ...rest] = (text(parsed, 'lease') ?? '').split('/');
    if (!namespace || !name || rest.length > 0) throw new UsageError('--lease: want NAMESPACE/NAME');
    const leaseHolder = text(parsed, 'lease-holder') ?? 'sidecar';
    if (leaseHolder !== 'sidecar' && leaseHolder !== 'self')
      throw new UsageError(`--lease-holder ${leaseHolder}: want sidecar or self`);
    const wanted = text(parsed, 'placement') ?? 'binpack';
    const placement = PLACEMENTS.find((one) => one === wanted);
    if (!placement) throw new UsageError(`--placement ${wanted}: want one of ${PLACEMENTS.join(', ')}`);
    const healthPort = portOf(text(parsed, 'health-port'), '--health-port');
    const logger = loggerOf(parsed, 'scheduler');
    const options: SchedulerOptions = {
      config: kubeConfig(text(parsed, 'kubeconfig')),
      host,
      port: portOf(text(parsed, 'port'), '--port') ?? 9840,
      ...(tls && { tls }),
      ...(healthPort !== undefined && { healthPort }),
      lease: { namespace, name },
      leaseHolder,
      hostname: hostname(),
      placement,
      evictOvercommittedAfterMs: 1000 * secondsOf(text(parsed, 'overcommitted-after') ?? '15', '--overcommitted-after'),
      logger,
    };
    const address = `${tls ? 'https' : 'http'}://${host.includes(':') ? `[${host}]` : host}`;
    return runUntilSignal(
      () => startScheduler(options),
      ({ port }) => logger.info(`extender on ${address}:${port}, Lease ${namespace}/${name}`),
    );
  },
};

const isLoopback = (host: string): boolean => host === '::1' || (isIP(host) === 4 && host.startsWith('127.'));

function kubeConfig(path: string | undefined): KubeConfig {
  const config = new KubeConfig();
  try {
    if (path === undefined) config.loadFromCluster();
    else config.loadFromFile(path);
  } catch (error) {
    throw new UsageError(`${path ?? 'the cluster'}: ${(error as Error).message}`);
  }
  return config;
}

function secondsOf(value: string, option: string): number {
  if (!/^[1-9]\d{0,3}$/.test(value)) throw new UsageError(`${option} ${value}: want whole seconds, 1 to 9999`);
  return Number(value);
}

function portOf(value: string | undefined, option: string): number | undefined {
  if (value === undefined) return undefined;
  const port = Number(value);
  if (!/^\d+$/.test(value) || port > 65535) throw new UsageError(`${option} ${value}: want 0 to 65535`);
  return port;
}
