// An Alertmanager for one test, on loopback.
import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { existsSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { freePort } from '../machine/ports.ts';
import { eventually, START_MS, type Teardown, temporaryFolder } from '../native/node.ts';
import { findAlertmanager } from './promtool.ts';

const found = findAlertmanager();
const program = 'path' in found ? found.path : '';
/** Debian's has its templates in a fixed folder. For one that is only unpacked, a mount namespace has them there. */
const templates = join(dirname(program), 'prometheus');
const SHOWN = 'mount -t tmpfs none /usr/share && cp -r "$1" /usr/share && shift && exec "$@"';
const SHOWING = existsSync(templates) ? ['unshare', '-rm', 'sh', '-c', SHOWN, 'sh', templates] : [];
const refused = SHOWING.length > 0 && spawnSync('unshare', ['-rm', 'true']).status !== 0;
/** Why there is none here; undefined: there is one. */
export const alertmanagerReason: string | undefined =
  'reason' in found ? found.reason : refused ? 'no mount namespace can be made here' : undefined;

/** Its address, once it is ready. */
export async function startAlertmanager(t: Teardown, configuration: string): Promise<string> {
  const url = `http://127.0.0.1:${await freePort()}`;
  const flags = [
    `--config.file=${configuration}`,
    `--storage.path=${temporaryFolder(t)}`,
    `--web.listen-address=${new URL(url).host}`,
    '--cluster.listen-address=',
  ];
  const [file = '', ...args] = [...SHOWING, program, ...flags];
  const child = spawn(file, args, { stdio: ['ignore', 'ignore', 'pipe'] });
  const said: string[] = [];
  child.stderr.on('data', (part: Buffer) => said.push(String(part)));
  const exited = once(child, 'exit');
  t.teardown(async () => {
    if (child.exitCode === null && child.signalCode === null) child.kill('SIGTERM');
    await exited;
  });
  await eventually(
    async () => {
      if (child.exitCode !== null) throw new Error(`Alertmanager ended: ${said.join('')}`);
      return (await fetch(`${url}/-/ready`).catch(() => undefined))?.ok || undefined;
    },
    'Alertmanager is ready',
    START_MS,
  );
  return url;
}
