// The webhook without the chart, as processes beside a lone API server, registered by an address.
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { selfSigned } from '../../../src/serving/x509.ts';
import type { Teardown } from '../../support/native/node.ts';
import type { LoneApiServer } from '../bed/api-server.ts';
import { register } from './registration.ts';

export type Replica = { readonly name: string; readonly port: number; readonly probe: number };

/** The longest that a registration may have: what a busy machine takes is not what these tests ask for. */
const CALL_S = 30;
const MAIN = join(import.meta.dirname, '../../../src/cli/main.ts');

/** Starts them; `registerAt` has API servers call them at a port, so once they serve. */
export function startReplicas(
  t: Teardown,
  { api, namespaces }: Pick<LoneApiServer, 'api' | 'namespaces'>,
  replicas: readonly Replica[],
  drainS: number,
) {
  const folder = mkdtempSync(join(tmpdir(), 'cotenant-replicas-'));
  t.teardown(() => rmSync(folder, { recursive: true, force: true }));
  const { cert, key } = selfSigned(['127.0.0.1'], new Date());
  const [certFile, keyFile] = [join(folder, 'webhook.crt'), join(folder, 'webhook.key')];
  writeFileSync(certFile, cert);
  writeFileSync(keyFile, key);
  for (const { name, port, probe } of replicas) {
    const ports = ['--port', String(port), '--health-port', String(probe)];
    const files = ['--cert', certFile, '--key', keyFile, '--host', '127.0.0.1', '--drain', String(drainS)];
    namespaces.start(name, [process.execPath, MAIN, 'webhook', ...files, ...ports]);
  }
  return {
    async registerAt(port: number): Promise<void> {
      const caBundle = Buffer.from(cert).toString('base64');
      const clientConfig = (path: string) => ({ url: `https://127.0.0.1:${port}/${path}`, caBundle });
      await register(api, (path) => ({ clientConfig: clientConfig(path), timeoutSeconds: CALL_S }));
      await api.ask('POST', '/api/v1/namespaces/default/serviceaccounts', { metadata: { name: 'default' } });
    },
  };
}
