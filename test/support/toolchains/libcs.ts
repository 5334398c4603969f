// Other C libraries from Debian's packages, and programs built for them: musl and the 32-bit glibc.
import { execFileSync } from 'node:child_process';
import { join } from 'node:path';
import { debianPackages, packagesFolder, type Wanted } from './debian.ts';

const WANTED: readonly Wanted[] = [
  { name: 'musl', from: 'own' },
  { name: 'musl-dev', from: 'own' },
  { name: 'libc6-i386', from: 'own' },
];

export type OtherLibcs =
  | {
      readonly ok: true;
      readonly musl: string;
      /** Builds `source` for musl, or as a 32-bit program, without this machine's libc. */
      buildMusl(source: string, to: string, ...flags: string[]): void;
      /** Builds several sources with musl linked statically. Kernel headers are those of this machine. */
      buildMuslStatic(sources: readonly string[], to: string, ...flags: string[]): void;
      build32(source: string, to: string): void;
    }
  | { readonly ok: false; readonly reason: string };

const gcc = (...words: string[]) => execFileSync('gcc', words, { stdio: ['ignore', 'inherit', 'inherit'] });

let found: OtherLibcs | undefined;

export function otherLibcs(): OtherLibcs {
  found ??= fetchThem();
  return found;
}

function fetchThem(): OtherLibcs {
  const packages = debianPackages(packagesFolder('libcs', WANTED), WANTED, (line) => console.error(line));
  if (!packages.ok) return packages;
  const { root } = packages;
  const musl = join(root, 'lib/x86_64-linux-musl/libc.so');
  const parts = join(root, 'usr/lib/x86_64-linux-musl');
  const narrow = join(root, 'lib32');
  return {
    ok: true,
    musl,
    buildMusl(source, to, ...flags) {
      const include = ['-nostdinc', '-isystem', join(root, 'usr/include/x86_64-linux-musl')];
      const loader = `-Wl,-dynamic-linker,${join(root, 'lib/ld-musl-x86_64.so.1')}`;
      const [first, second, last] = ['crt1.o', 'crti.o', 'crtn.o'].map((name) => join(parts, name));
      gcc(
        '-O1',
        '-no-pie',
        ...flags,
        ...include,
        '-nostdlib',
        '-o',
        to,
        `${first}`,
        `${second}`,
        source,
        musl,
        `${last}`,
        loader,
      );
    },
    buildMuslStatic(sources, to, ...flags) {
      const of = (...words: string[]) => execFileSync('gcc', words, { encoding: 'utf8' }).trim();
      const own = ['-isystem', join(root, 'usr/include/x86_64-linux-musl'), '-isystem', of('-print-file-name=include')];
      const kernel = ['/usr/include', '/usr/include/x86_64-linux-gnu'].flatMap((path) => ['-idirafter', path]);
      const [first, second, last] = ['crt1.o', 'crti.o', 'crtn.o'].map((name) => join(parts, name));
      const inside = [join(parts, 'libc.a'), of('-print-libgcc-file-name')];
      gcc(
        '-O1',
        '-static',
        '-no-pie',
        '-nostdinc',
        ...own,
        ...kernel,
        '-nostdlib',
        ...flags,
        '-o',
        to,
        `${first}`,
        `${second}`,
        ...sources,
        ...inside,
        `${last}`,
      );
    },
    build32(source, to) {
      const bare = ['-m32', '-O1', '-ffreestanding', '-nostdlib', '-fno-pic', '-no-pie', '-fno-stack-protector'];
      const loader = [`-Wl,-dynamic-linker,${join(narrow, 'ld-linux.so.2')}`, `-Wl,-rpath,${narrow}`, '-Wl,-e,start'];
      gcc(...bare, '-o', to, source, join(narrow, 'libc.so.6'), ...loader);
    },
  };
}
