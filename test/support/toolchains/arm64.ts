// A cross compiler for arm64, its libc and QEMU's user emulator from Debian's packages, unpacked and not installed, so
// that no privilege on this machine is needed.
import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { debianPackages, packagesFolder, type Wanted } from './debian.ts';

const WANTED: readonly Wanted[] = [
  { name: 'g++-aarch64-linux-gnu', from: 'own', as: 'needs' },
  { name: 'libc6-dev-arm64-cross', from: 'own', as: 'needs' },
];
/** Statically linked, so the package of any release runs. Before QEMU 8 MADV_WIPEONFORK does not work. */
const EMULATOR: readonly Wanted[] = [{ name: 'qemu-user', from: 'sid' }];

const BUILD = join(import.meta.dirname, '../../../native/build');
export const ARM64_BUILD = join(BUILD, 'arm64');
/** Like BUILD, with arm64 programs that run in the emulator (test/arm64/prepare.ts). */
export const EMULATED_BUILD = join(BUILD, 'emulated');
/** Explains why arm64 programs cannot be built. */
export const UNAVAILABLE = join(EMULATED_BUILD, 'unavailable');

/** Why the tests of this layer cannot run here; undefined if they can. */
export const arm64Reason = (): string | undefined =>
  existsSync(UNAVAILABLE) ? readFileSync(UNAVAILABLE, 'utf8') : undefined;

export type Arm64 =
  | {
      readonly ok: true;
      /** Variables for make: CROSS, SYSROOT. */
      readonly make: readonly string[];
      readonly compiler: readonly string[];
      /** Folder where the compiler finds its own libraries. */
      readonly env: Readonly<Record<string, string>>;
      readonly emulator: string;
      /** Folder where emulated programs find their loader. */
      readonly prefix: string;
    }
  | { readonly ok: false; readonly reason: string };

export function arm64(): Arm64 {
  const say = (line: string) => console.error(line);
  const packages = debianPackages(packagesFolder('arm64', WANTED), WANTED, say);
  if (!packages.ok) return packages;
  const emulator = debianPackages(packagesFolder('emulator', EMULATOR), EMULATOR, say);
  if (!emulator.ok) return emulator;
  const { root } = packages;
  return {
    ok: true,
    compiler: [join(root, 'usr/bin/aarch64-linux-gnu-gcc'), `--sysroot=${root}`],
    make: [`CROSS=${join(root, 'usr/bin/aarch64-linux-gnu-')}`, `SYSROOT=${root}`],
    env: { LD_LIBRARY_PATH: join(root, 'usr/lib/x86_64-linux-gnu') },
    emulator: join(emulator.root, 'usr/bin/qemu-aarch64'),
    prefix: join(root, 'usr/aarch64-linux-gnu'),
  };
}
