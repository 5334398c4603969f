// `cotenant scheduler`: the extender of kube-scheduler in the foreground.

import { isIP } from 'node:net';
import { hostname } from 'node:os';
import { setFlagsFromString } from 'node:v8';
import { PLACEMENTS } from '../../api/request.ts';
import { type ApiConfig, inCluster, loadApiConfig } from '../../kube/config.ts';
import { type SchedulerOptions, startScheduler } from '../../scheduler/start.ts';
import { type Command, choice, port, text, UsageError, whole } from '../lib/command.ts';
import { LOG_OPTIONS, loggerOf } from '../lib/log-options.ts';
import { runUntilSignal } from '../lib/run-until-signal.ts';

/** As many as kube-scheduler scores at least by itself (its minFeasibleNodesToFind). */
const DEFAULT_MOST_NODES = 100;

export const scheduler: Command = {
  name: 'scheduler',
  summary:
    'Extends kube-scheduler: chooses the GPUs of pods that request a share, and writes the choice as it binds them.',
  usage:
    '--lease NAMESPACE/NAME [--lease-holder HOLDER] [--host ADDRESS --cert FILE --key FILE --client-ca FILE] [--port N]',
  options: {
    lease: { value: 'NAMESPACE/NAME', help: 'the Lease; only its holder binds pods. Required' },
    'lease-holder': {
      value: 'HOLDER',
      help: 'sidecar (default): the kube-scheduler in the same pod holds the Lease; self: this process does',
    },
    host: { value: 'ADDRESS', help: 'address to listen on (default 127.0.0.1)' },
    port: { short: 'p', value: 'N', help: 'port (default 9840)' },
    cert: {
      value: 'FILE',
      help: 'certificate in PEM; with --key and --client-ca, for any other address',
    },
    key: { value: 'FILE', help: 'its private key' },
    'client-ca': { value: 'FILE', help: 'authority that must have signed the certificates of callers' },
    'health-port': { value: 'N', help: 'plain port for /healthz, /readyz and /metrics' },
    placement: {
      value: 'HOW',
      help: 'binpack (default), spread, fragmentation or topology, for pods that choose none',
    },
    'most-nodes': {
      value: 'N',
      help: 'give kube-scheduler only the N best of the nodes that can take a pod, and all when it tries the pod again (default 100)',
    },
    'overcommitted-after': {
      value: 'SECONDS',
      help: 'evict pods that have not started from a GPU that is overcommitted for so long (default 15)',
    },
    kubeconfig: { value: 'FILE', help: 'how to reach the API server (default: as any pod does)' },
    ...LOG_OPTIONS,
  },
  async run(parsed) {
    // Lists of large clusters leave much garbage: V8 collects it after little growth, not at several times what is used.
    setFlagsFromString('--optimize-for-size');
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
    const leaseHolder = choice(parsed, 'lease-holder', ['sidecar', 'self']) ?? 'sidecar';
    const placement = choice(parsed, 'placement', PLACEMENTS) ?? 'binpack';
    const healthPort = port(parsed, 'health-port');
    const logger = loggerOf(parsed, 'scheduler');
    const options: SchedulerOptions = {
      host,
      port: port(parsed, 'port') ?? 9840,
      ...(tls && { tls }),
      ...(healthPort !== undefined && { healthPort }),
      lease: { namespace, name },
      leaseHolder,
      hostname: hostname(),
      placement,
      mostNodes: whole(parsed, 'most-nodes', 1, 99_999) ?? DEFAULT_MOST_NODES,
      evictOvercommittedAfterMs: 1000 * (whole(parsed, 'overcommitted-after', 1, 9999) ?? 15),
      logger,
      config: await apiConfig(text(parsed, 'kubeconfig')),
    };
    const address = `${tls ? 'https' : 'http'}://${host.includes(':') ? `[${host}]` : host}`;
    return runUntilSignal(
      () => startScheduler(options),
      (started) => logger.info(`extender on ${address}:${started.port}, Lease ${namespace}/${name}`),
    );
  },
};

const isLoopback = (host: string): boolean => host === '::1' || (isIP(host) === 4 && host.startsWith('127.'));

async function apiConfig(path: string | undefined): Promise<ApiConfig> {
  try {
    return path === undefined ? inCluster(process.env) : await loadApiConfig(path);
  } catch (error) {
    throw new UsageError(`${path ?? 'the cluster'}: ${(error as Error).message}`);
  }
}
