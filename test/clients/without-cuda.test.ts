// Programs that try CUDA and work without it, in an image without a driver: ffmpeg (NVDEC, NVENC), Open MPI, and
// PyTorch on the CPU (in test:long only). Work, output and exit code are the same as without Cotenant.
import { spawnSync } from 'node:child_process';
import { symlinkSync } from 'node:fs';
import { join } from 'node:path';
import type { ExecutionContext } from 'ava';
import { testUnless } from '../support/gate.ts';
import { BUILD, temporaryFolder } from '../support/native/node.ts';
import { wheels } from './wheels.ts';

const OBJECTS = ['libcotenant.so', 'libcotenant-nvml.so'];

type Ended = { readonly code: number | null; readonly out: string; readonly errors: string };

/** Runs a command without and with both preloaded objects, whose folder has no grant. */
function bothWays(
  t: ExecutionContext,
  command: readonly string[],
  env: Readonly<Record<string, string>> = {},
): { plain: Ended; preloaded: Ended } {
  t.timeout(300_000);
  const folder = temporaryFolder(t);
  for (const name of OBJECTS) symlinkSync(join(BUILD, name), join(folder, name));
  const [file = '', ...args] = command;
  const run = (preload: readonly string[]): Ended => {
    const all = { PATH: '/usr/bin:/bin', HOME: folder, ...env };
    const LD_PRELOAD = [...preload, env.LD_PRELOAD ?? ''].join(' ').trim();
    const { status, stdout, stderr } = spawnSync(file, args, {
      env: LD_PRELOAD === '' ? all : { ...all, LD_PRELOAD },
      encoding: 'utf8',
      timeout: 240_000,
    });
    return { code: status, out: stdout, errors: stderr };
  };
  return { plain: run([]), preloaded: run(OBJECTS.map((name) => join(folder, name))) };
}

const missing = (program: string): string | undefined =>
  spawnSync(program, ['-version']).error ? `${program} is not installed` : undefined;

const FFMPEG = ['ffmpeg', '-hide_banner', '-nostdin', '-v', 'error'];
const PICTURES = ['-f', 'lavfi', '-i', 'testsrc=d=2:s=320x240:r=25'];
const noFfmpeg = missing('ffmpeg');

testUnless(noFfmpeg)('ffmpeg encodes on the CPU and lists accelerators as without Cotenant', (t) => {
  const encode = [...FFMPEG, ...PICTURES, '-c:v', 'mpeg4', '-threads', '2', '-f', 'framemd5', '-'];
  const { plain, preloaded } = bothWays(t, encode);
  t.is(plain.code, 0, plain.errors);
  t.is(plain.out.split('\n').filter((line) => /^0, /.test(line)).length, 50);
  t.deepEqual(preloaded, plain);
  const listed = bothWays(t, [...FFMPEG, '-hwaccels']);
  t.true(listed.plain.out.includes('cuda'));
  t.deepEqual(listed.preloaded, listed.plain);
});

for (const [what, args] of [
  ['a CUDA device', ['-init_hw_device', 'cuda', ...PICTURES, '-f', 'null', '-']],
  ['the encoder of a GPU', [...PICTURES, '-c:v', 'h264_nvenc', '-f', 'null', '-']],
] as const) {
  testUnless(noFfmpeg)(`ffmpeg with ${what} fails as without Cotenant`, (t) => {
    const { plain, preloaded } = bothWays(t, [...FFMPEG, ...args]);
    t.is(plain.code, 1);
    t.regex(plain.errors, /Cannot load libcuda\.so\.1/);
    // The library is found and reports that there is no device, or its companion for video is missing.
    t.regex(preloaded.errors, /cuInit\(0\) failed|Cannot load libnvidia-encode\.so\.1/);
    t.is(preloaded.code, plain.code);
    t.is(preloaded.out, plain.out);
  });
}

const RANK = `
import ctypes
mpi = ctypes.CDLL('libmpi.so.40', ctypes.RTLD_GLOBAL)
handle = lambda name: ctypes.c_void_p(ctypes.addressof(ctypes.c_char.in_dll(mpi, name)))
world, whole, add = handle('ompi_mpi_comm_world'), handle('ompi_mpi_int'), handle('ompi_mpi_op_sum')
assert mpi.MPI_Init(None, None) == 0
rank, size, total = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
mpi.MPI_Comm_rank(world, ctypes.byref(rank))
mpi.MPI_Comm_size(world, ctypes.byref(size))
mine = ctypes.c_int(10 ** rank.value)
assert mpi.MPI_Allreduce(ctypes.byref(mine), ctypes.byref(total), 1, whole, add, world) == 0
print(rank.value, size.value, total.value)
assert mpi.MPI_Finalize() == 0
`;

testUnless(missing('mpirun'))('Open MPI starts its ranks and they communicate as without Cotenant', (t) => {
  const mpirun = ['mpirun', '--allow-run-as-root', '--oversubscribe', '-n', '3', 'python3', '-c', RANK];
  const { plain, preloaded } = bothWays(t, mpirun);
  const sorted = ({ out, ...rest }: Ended) => ({ ...rest, out: out.trim().split('\n').toSorted() });
  t.deepEqual([plain.code, sorted(plain).out], [0, ['0 3 111', '1 3 111', '2 3 111']], plain.errors);
  t.deepEqual(sorted(preloaded), sorted(plain));
});

const torch = wheels();
const CPU = `
import torch
print(torch.cuda.is_available(), torch.cuda.device_count())
print((torch.arange(6.0).reshape(2, 3) @ torch.ones(3, 2)).tolist())
try:
    torch.zeros(1, device='cuda')
except (RuntimeError, AssertionError) as error:
    print(type(error).__name__)
`;
testUnless(torch.ok ? undefined : torch.reason)(
  'PyTorch finds no GPU and computes on the CPU as without Cotenant',
  (t) => {
    const stand = { LD_PRELOAD: join(BUILD, 'tests/cudart/libcudart.so.12'), PYTHONDONTWRITEBYTECODE: '1' };
    const { plain, preloaded } = bothWays(t, [torch.ok ? join(torch.folder, 'bin/python') : '', '-c', CPU], stand);
    t.is(plain.out, 'False 0\n[[3.0, 3.0], [12.0, 12.0]]\nRuntimeError\n', plain.errors);
    t.deepEqual([preloaded.code, preloaded.out], [plain.code, plain.out], preloaded.errors);
  },
);
