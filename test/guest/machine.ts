// Starts an emulated machine from an archive of files, runs its /init, and always ends it. Has QEMU's command line; the
// caller reads the output.
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import type { GuestTools } from './tools.ts';

const MEMORY_MIB = 2048;

/** All output of the machine on its serial line; throws if it does not end in time. */
export async function boot(
  { root, kernel }: Extract<GuestTools, { ok: true }>,
  archive: Buffer,
  limitMs: number,
  onLine: (line: string) => void,
): Promise<void> {
  const folder = mkdtempSync(join(tmpdir(), 'cotenant-guest-'));
  try {
    const initrd = join(folder, 'initrd');
    writeFileSync(initrd, archive);
    const inRoot = (path: string) => join(root, path);
    const command = [
      ...['-L', inRoot('usr/share/qemu'), '-L', inRoot('usr/share/seabios')],
      ...['-accel', 'tcg', '-cpu', 'max', '-m', String(MEMORY_MIB), '-smp', '1'],
      ...['-nodefaults', '-no-user-config', '-display', 'none', '-serial', 'stdio', '-no-reboot'],
      ...['-kernel', kernel, '-initrd', initrd],
      ...['-append', 'console=ttyS0 quiet loglevel=3 panic=-1 rdinit=/init'],
    ];
    const libraries = ['usr/lib/x86_64-linux-gnu', 'lib/x86_64-linux-gnu'].map(inRoot).join(':');
    const qemu = spawn('setpriv', ['--pdeathsig', 'KILL', inRoot('usr/bin/qemu-system-x86_64'), ...command], {
      env: { ...process.env, LD_LIBRARY_PATH: libraries },
      stdio: ['ignore', 'pipe', 'pipe'],
    });
    const said: string[] = [];
    createInterface({ input: qemu.stderr }).on('line', (line) => said.push(line));
    createInterface({ input: qemu.stdout }).on('line', onLine);
    let late = false;
    const timer = setTimeout(() => {
      late = true;
      qemu.kill('SIGKILL');
    }, limitMs);
    const [code] = (await once(qemu, 'close')) as [number | null];
    clearTimeout(timer);
    if (late) throw new Error(`the guest has not ended within ${limitMs / 1000} s`);
    if (code !== 0) throw new Error(`QEMU ended with ${code}: ${said.join('\n')}`);
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}
