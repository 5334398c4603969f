// The files that are loaded into every process of a container: the libc symbols they need, their thread-local storage
// and size, and the functions that they must never use. In the layer arm64 they are those of that architecture.
import { execFileSync } from 'node:child_process';
import { join } from 'node:path';
import test from 'ava';
import { engineName, enginesIn, PRELOADED } from '../../../../src/agent/grants/engine-files.ts';
import { testUnless } from '../../../support/gate.ts';
import { BUILD, EMULATED } from '../../../support/native/node.ts';
import { otherLibcs } from '../../../support/toolchains/libcs.ts';

const OBJECTS = PRELOADED;
const ENGINES = enginesIn(BUILD).map(engineName);
const libcs = otherLibcs();

/** All libc symbols that the objects may need: glibc 2.17 and musl have them. */
const ALLOWED =
  `__environ __errno_location __stack_chk_fail calloc clock_gettime close closedir dl_iterate_phdr environ fcntl free getauxval getenv getpid madvise malloc memcpy memmem memmove memset mmap munmap nanosleep open opendir pread
  pthread_mutex_lock pthread_mutex_unlock read readdir realloc rewinddir sched_yield snprintf sprintf strchr strcmp strcspn strerror strlen strncmp
  strnlen strrchr strspn strstr strverscmp syscall vsnprintf write`.split(/\s+/);
/** These may be missing. */
const WEAK = [
  '_ITM_deregisterTMCloneTable',
  '_ITM_registerTMCloneTable',
  '__cxa_finalize',
  '__gmon_start__',
  '_r_debug',
  'dladdr',
  'dladdr1',
  'dlclose',
  'dlinfo',
  'dlopen',
];
const NEWEST_GLIBC = [2, 17];
const MOST_THREAD_STORAGE = 64;

type Import = { readonly weak: boolean; readonly name: string; readonly version: string };
const imports = (object: string): Import[] =>
  execFileSync('nm', ['-D', '--undefined-only', join(BUILD, object)], { encoding: 'utf8' })
    .trim()
    .split('\n')
    .map((line) => {
      const [kind = '', symbol = ''] = line.trim().split(/\s+/);
      const [name = '', version = ''] = symbol.split('@');
      return { weak: kind === 'w', name, version };
    });
const readelf = (option: string, object: string) =>
  execFileSync('readelf', [option, '-W', join(BUILD, object)], { encoding: 'utf8' });

for (const object of [...OBJECTS, ...ENGINES]) {
  test(`${object} needs nothing that an older glibc or musl lacks`, (t) => {
    const found = imports(object);
    t.true(found.length > 20);
    t.deepEqual(
      found.flatMap(({ weak, name }) => ((weak ? WEAK : ALLOWED).includes(name) ? [] : [name])),
      [],
      'not in the list of what it may use',
    );
    for (const { name, version } of found) {
      const [major = 0, minor = 0] = version.replace('GLIBC_', '').split('.').map(Number);
      const isOld = version === '' || (major === NEWEST_GLIBC[0] && minor <= (NEWEST_GLIBC[1] ?? 0));
      t.true(isOld, `${name}@${version} is newer than glibc ${NEWEST_GLIBC.join('.')}`);
    }
    const needed = [...readelf('-d', object).matchAll(/NEEDED.*\[(.+)\]/g)].map(([, library]) => library);
    t.deepEqual(
      needed,
      ['libc.so.6'],
      'every glibc has it, musl takes the name for its own, and no image needs another',
    );
  });
}

for (const object of OBJECTS) {
  test(`${object} takes ${MOST_THREAD_STORAGE} bytes of thread storage at most, stays loaded`, (t) => {
    const segment = /^ *TLS +\S+ +\S+ +\S+ +\S+ +(0x[0-9a-f]+)/m.exec(readelf('-l', object))?.[1] ?? '0x0';
    t.true(Number(segment) <= MOST_THREAD_STORAGE, segment);
    t.regex(readelf('-d', object), /NODELETE/);
  });

  test(`the loader binds none of ${object}'s own names by searching for them`, (t) => {
    const searched = readelf('-r', object)
      .split('\n')
      .flatMap((line) => / R_(?:X86_64_64|AARCH64_ABS64|\w+_GLOB_DAT|\w+_JUMP_SLOT?) +\S+ (\w+)/.exec(line)?.[1] ?? []);
    const foreign = new Set(imports(object).map(({ name }) => name));
    t.true(searched.length > 20, `${searched.length} look-ups per exec`);
    t.deepEqual(
      searched.filter((name) => !foreign.has(name)),
      [],
    );
  });
}

for (const engine of ENGINES) {
  test(`${engine} can be unloaded: no thread storage, one exported symbol`, (t) => {
    t.false(/^ *TLS /m.test(readelf('-l', engine)));
    t.false(/NODELETE/.test(readelf('-d', engine)));
    const names = execFileSync('nm', ['-D', '--defined-only', join(BUILD, engine)], { encoding: 'utf8' });
    t.deepEqual(
      names
        .trim()
        .split('\n')
        .map((line) => line.split(' ')[2]),
      ['cotenant_engine'],
    );
  });

  // What is handed through to it are six registers.
  test(`no function of ${engine} for an entry point takes more than six arguments`, (t) => {
    const text = execFileSync('readelf', ['--debug-dump=info', '-W', join(BUILD, engine)], {
      encoding: 'utf8',
      maxBuffer: 1 << 28,
    });
    const functions = text.split(/^ <1><[0-9a-f]+>: /m).flatMap((entry) => {
      const name = /^Abbrev Number: \d+ \(DW_TAG_subprogram\)[\s\S]*?DW_AT_name +:.*?(cot_cu\w+)$/m.exec(entry)?.[1];
      return name ? [{ name, count: entry.match(/^ <2>.*DW_TAG_formal_parameter/gm)?.length ?? 0 }] : [];
    });
    t.true(functions.length > 50, String(functions.length));
    t.true(functions.some(({ count }) => count === 5));
    t.deepEqual(
      functions.filter(({ count }) => count > 6),
      [],
    );
  });
}

testUnless(EMULATED ? 'of this machine there is one' : libcs.ok ? undefined : `no musl to be had: ${libcs.reason}`)(
  'musl has all that the objects may use',
  (t) => {
    const exported = new Set(
      execFileSync('nm', ['-D', '--defined-only', libcs.ok ? libcs.musl : ''], { encoding: 'utf8' })
        .split('\n')
        .map((line) => line.split(' ')[2]),
    );
    t.deepEqual(
      ALLOWED.filter((name) => !exported.has(name)),
      [],
    );
  },
);
