// Which driver the interposer finds for each layout of an image: each in a root of its own, with drivers of several
// versions, so that the version shows which one was found.
import { execFileSync } from 'node:child_process';
import { copyFileSync, cpSync, linkSync, mkdirSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import type { ExecutionContext } from 'ava';
import { namespacesReason, testUnless } from '../../../support/gate.ts';
import { BUILD, type SimulatedNode, startNode, temporaryFolder } from '../../../support/native/node.ts';
import { type GrantFiles, MIB, makeGrant } from '../../../support/product/grant.ts';

const GRANT_BYTES = 300 * MIB;
const NO_DEVICE = 100;
const testHere = testUnless(namespacesReason());

type Version = 12040 | 12080 | 13000;
type Image = {
  /** Folder -> the driver that lies in it. */
  readonly drivers?: Readonly<Record<string, Version>>;
  /** Folders with a copy of our own object under the driver's name, in files of their own. */
  readonly copies?: readonly string[];
  /** Folders that the loader's cache knows. */
  readonly cached?: readonly string[];
  readonly libraryPath?: string;
  readonly program?: 'client' | 'client-runpath' | 'client-rpath';
  readonly commands?: readonly string[];
};

const library = (version: Version) =>
  join(BUILD, version === 13000 ? 'simulated/libcuda.so.1' : `simulated/${version}/libcuda.so.1`);

/** Runs the image's program preloaded; the first value of each command's answer, or its error. */
function run(t: ExecutionContext, node: SimulatedNode, grant: GrantFiles, image: Image): number[] {
  const root = join(temporaryFolder(t), 'root');
  const put = (from: string, to: string) => {
    mkdirSync(dirname(join(root, to)), { recursive: true });
    copyFileSync(from, join(root, to));
  };
  const program = image.program ?? 'client';
  put(join(BUILD, 'tests', program), '/program');
  put(join(BUILD, 'tests/plugin-runpath.so'), '/plugin.so');
  const both = [join(BUILD, 'tests/client'), join(BUILD, 'libcotenant.so')];
  const needed = execFileSync('ldd', both, { encoding: 'utf8', env: {} });
  for (const [, path = ''] of needed.matchAll(/(\/\S+) \(0x/g)) put(path, path);
  cpSync(grant.folder, join(root, 'grant'), { recursive: true, dereference: true });
  for (const name of ['proc', 'usr/local/simulated', 'etc']) mkdirSync(join(root, name), { recursive: true });
  linkSync(join(node.folder, 'node.sock'), join(root, 'usr/local/simulated/node.sock'));
  for (const [folder, version] of Object.entries(image.drivers ?? {})) put(library(version), `${folder}/libcuda.so.1`);
  for (const folder of image.copies ?? []) put(join(BUILD, 'libcotenant.so'), `${folder}/libcuda.so.1`);
  writeFileSync(join(root, 'etc/ld.so.conf'), (image.cached ?? []).join('\n'));
  if (image.cached) execFileSync('ldconfig', ['-r', root], { env: { PATH: '/usr/sbin:/sbin:/usr/bin:/bin' } });
  writeFileSync(join(root, 'etc/ld.so.preload'), '/grant/libcotenant.so\n');
  const commands = image.commands ?? ['version', 'init', 'total 0'];
  const args = ['/program', 'libcuda.so.1', ...commands].map((arg) => `'${arg}'`).join(' ');
  const output = execFileSync(
    'unshare',
    [
      '-m',
      '--propagation',
      'private',
      'sh',
      '-c',
      `mount --bind /proc '${root}/proc' && exec chroot '${root}' ${args}`,
    ],
    {
      encoding: 'utf8',
      input: '',
      env: {
        PATH: '/usr/sbin:/sbin:/usr/bin:/bin',
        ...(image.libraryPath ? { LD_LIBRARY_PATH: image.libraryPath } : {}),
      },
    },
  );
  return output
    .trim()
    .split('\n')
    .map((line) => {
      const [result = -1, value = 0] = line.split(' ').map(Number);
      return result === 0 ? value : result;
    });
}

const CASES: readonly [string, Version, Image][] = [
  ["in the loader's default folder, in no cache", 12080, { drivers: { '/usr/lib/x86_64-linux-gnu': 12080 } }],
  ['in /usr/lib64', 12080, { drivers: { '/usr/lib64': 12080 } }],
  ["in the loader's cache", 12080, { drivers: { '/opt/any': 12080 }, cached: ['/opt/any'] }],
  [
    'on the library path, though the cache has another',
    12080,
    { drivers: { '/opt/any': 12080, '/usr/lib/x86_64-linux-gnu': 13000 }, cached: [], libraryPath: '/opt/any' },
  ],
  [
    "on the library path in a folder below the loader's own",
    12080,
    {
      drivers: { '/usr/lib/wsl/lib': 12080, '/opt/any': 13000 },
      cached: ['/opt/any'],
      libraryPath: '/usr/lib/wsl/lib',
    },
  ],
  [
    "by the program's RUNPATH",
    12080,
    { drivers: { '/opt/driver': 12080, '/opt/any': 13000 }, cached: ['/opt/any'], program: 'client-runpath' },
  ],
  [
    'on the library path, which goes before RUNPATH',
    13000,
    { drivers: { '/opt/driver': 12080, '/opt/any': 13000 }, libraryPath: '/opt/any', program: 'client-runpath' },
  ],
  [
    'by RPATH, which goes before the library path',
    12080,
    { drivers: { '/opt/driver': 12080, '/opt/any': 13000 }, libraryPath: '/opt/any', program: 'client-rpath' },
  ],
  [
    'by the RUNPATH of the object that asks',
    12080,
    {
      drivers: { '/opt/driver': 12080, '/opt/any': 13000 },
      cached: ['/opt/any'],
      commands: ['through /plugin.so', 'init', 'total 0'],
    },
  ],
  [
    'a forward-compatibility package that the library path names, before the driver of the machine',
    13000,
    {
      drivers: { '/usr/local/cuda/compat': 13000, '/usr/lib/x86_64-linux-gnu': 12040 },
      cached: [],
      libraryPath: '/usr/local/cuda/compat',
    },
  ],
  ['a forward-compatibility package that is not configured', 12080, { drivers: { '/usr/local/cuda/compat': 12080 } }],
  [
    'the newest of several forward-compatibility packages',
    13000,
    {
      drivers: {
        '/usr/local/cuda-9.2/compat': 12040,
        '/usr/local/cuda-13.0/compat': 13000,
        '/usr/local/cuda-12.8/compat': 12080,
      },
    },
  ],
  [
    'the driver of the machine rather than a forward-compatibility package',
    12040,
    { drivers: { '/usr/lib64/nvidia': 12040, '/usr/local/cuda-13.0/compat': 13000 } },
  ],
  ...[
    '/usr/local/nvidia/lib64',
    '/usr/local/nvidia/lib',
    '/usr/lib/x86_64-linux-gnu/nvidia/current',
    '/usr/lib/x86_64-linux-gnu/nvidia',
    '/usr/lib64/nvidia',
    '/usr/lib/nvidia',
    '/run/opengl-driver/lib',
    '/usr/lib/wsl/lib',
  ].map((folder): [string, Version, Image] => [`in ${folder}`, 12080, { drivers: { [folder]: 12080 } }]),
  [
    'behind copies of ourselves that the loader would find first',
    12080,
    {
      copies: ['/opt/copy', '/usr/lib/x86_64-linux-gnu'],
      drivers: { '/usr/local/nvidia/lib64': 12080 },
      cached: [],
      libraryPath: '/opt/copy',
    },
  ],
];

testHere('the driver is found as the loader would have found it, and where vendors put it', async (t) => {
  const node = await startNode(t, '--gpu', 't4');
  const grant = makeGrant(t, node, [{ gpu: 0, memoryBytes: GRANT_BYTES }]);
  for (const [where, version, image] of CASES) {
    t.deepEqual(run(t, node, grant, image), [version, 0, GRANT_BYTES], where);
  }
});

testHere('an image that has only copies of ourselves has no driver', async (t) => {
  const node = await startNode(t, '--gpu', 't4');
  const grant = makeGrant(t, node, [{ gpu: 0, memoryBytes: GRANT_BYTES }]);
  const image: Image = { copies: ['/usr/lib/x86_64-linux-gnu', '/usr/local/nvidia/lib64'], cached: [] };
  t.deepEqual(run(t, node, grant, { ...image, commands: ['init', 'alloc 512'] }), [NO_DEVICE, NO_DEVICE]);
});
