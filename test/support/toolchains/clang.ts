// clang with its fuzzer and sanitizer runtimes from Debian's packages, unpacked and not installed.
import { join } from 'node:path';
import { debianPackages, packagesFolder, type Wanted } from './debian.ts';

const WANTED: readonly Wanted[] = [
  { name: 'clang-14', from: 'own', as: 'needs' },
  { name: 'libclang-rt-14-dev', from: 'own', as: 'needs' },
  { name: 'llvm-14', from: 'own', as: 'needs' },
];

export type Clang =
  | {
      readonly ok: true;
      /** Variables for make. */
      readonly make: readonly string[];
      /** Symbolizer that names functions in reports. */
      readonly symbolizer: string;
    }
  | { readonly ok: false; readonly reason: string };

export function clang(): Clang {
  const packages = debianPackages(packagesFolder('clang', WANTED), WANTED, (line) => console.error(line));
  if (!packages.ok) return packages;
  const bin = join(packages.root, 'usr/bin');
  return {
    ok: true,
    make: [`FUZZ_CC=${join(bin, 'clang-14')}`, `FUZZ_CXX=${join(bin, 'clang++-14')}`],
    symbolizer: join(packages.root, 'usr/lib/llvm-14/bin/llvm-symbolizer'),
  };
}
