// QEMU and a kernel for the guest from Debian's packages. The machine is emulated, because hardware virtualization is
// not available everywhere; it is about twenty times slower, so few checks run in it.
import { existsSync, readdirSync } from 'node:fs';
import { join } from 'node:path';
import { debianPackages, packagesFolder, type Wanted } from '../support/toolchains/debian.ts';

const PACKAGES: readonly Wanted[] = [
  { name: 'qemu-system-x86', from: 'own', as: 'needs' },
  { name: 'linux-image-cloud-amd64', from: 'own', as: 'meta' },
  { name: 'busybox-static', from: 'own' },
];

export type GuestTools =
  | {
      readonly ok: true;
      /** Folder of the unpacked packages. */
      readonly root: string;
      readonly kernel: string;
      readonly busybox: string;
      readonly versions: string;
    }
  | { readonly ok: false; readonly reason: string };

/** Fetched if it is missing and `get` is set. */
export function guestTools(say: (line: string) => void, get = true): GuestTools {
  if (process.arch !== 'x64') return { ok: false, reason: 'the emulated guest runs programs of x86-64 machines only' };
  const home = packagesFolder('guest-packages', PACKAGES);
  if (!get && !existsSync(home)) {
    return { ok: false, reason: 'there is no QEMU: node test/guest/prepare.ts says why' };
  }
  const packages = debianPackages(home, PACKAGES, say);
  if (!packages.ok) return packages;
  const { root, versions } = packages;
  const kernel = readdirSync(join(root, 'boot')).find((name) => name.startsWith('vmlinuz-'));
  const busybox = ['bin/busybox', 'usr/bin/busybox'].map((path) => join(root, path)).find((path) => existsSync(path));
  if (kernel === undefined || busybox === undefined)
    return { ok: false, reason: `${home} holds no kernel or no busybox` };
  return {
    ok: true,
    root,
    kernel: join(root, 'boot', kernel),
    busybox,
    versions: `QEMU ${versions['qemu-system-x86']}, ${kernel.replace('vmlinuz-', 'Linux ')}`,
  };
}
