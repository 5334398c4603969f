// Starts an emulated machine from an archive of files, runs its /init, and always ends it. Has QEMU's command line; the
// caller reads the output.
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import type { GuestTools } from './tools.ts';

export type MachineSettings = {
  /** Path of the archive that is unpacked at boot. */
  readonly initrd: string;
  readonly memoryMib: number;
  readonly processors: number;
  /** Arguments of QEMU for further devices. */
  readonly devices?: readonly string[];
};

/** Runs a machine whose serial line is standard output; it ends when the guest powers off or restarts. */
export function machineCommand(
  { root, kernel }: Extract<GuestTools, { ok: true }>,
  { initrd, memoryMib, processors, devices = [] }: MachineSettings,
): readonly string[] {
  const inRoot = (path: string) => join(root, path);
  const libraries = ['usr/lib/x86_64-linux-gnu', 'lib/x86_64-linux-gnu'].map(inRoot).join(':');
  return [
    ...['env', `LD_LIBRARY_PATH=${libraries}`, inRoot('usr/bin/qemu-system-x86_64')],
    ...['-L', inRoot('usr/share/qemu'), '-L', inRoot('usr/share/seabios')],
    // One thread for all processors unless there are several.
    ...['-accel', processors > 1 ? 'tcg,thread=multi' : 'tcg', '-cpu', 'max'],
    ...['-m', String(memoryMib), '-smp', String(processors)],
    ...['-nodefaults', '-no-user-config', '-display', 'none', '-serial', 'stdio', '-no-reboot'],
    ...['-kernel', kernel, '-initrd', initrd],
    ...['-append', 'console=ttyS0 quiet loglevel=3 panic=-1 rdinit=/init'],
    ...devices,
  ];
}

/** All output of the machine on its serial line; throws if it does not end in time. */
export async function boot(
  tools: Extract<GuestTools, { ok: true }>,
  archive: Buffer,
  limitMs: number,
  onLine: (line: string) => void,
): Promise<void> {
  const folder = mkdtempSync(join(tmpdir(), 'cotenant-guest-'));
  try {
    const initrd = join(folder, 'initrd');
    writeFileSync(initrd, archive);
    const command = machineCommand(tools, { initrd, memoryMib: 2048, processors: 1 });
    const qemu = spawn('setpriv', ['--pdeathsig', 'KILL', ...command], { stdio: ['ignore', 'pipe', 'pipe'] });
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
