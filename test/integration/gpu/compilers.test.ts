// What real GPUs are given to run, shown to NVIDIA's own compilers, which need no GPU: PTX of the probe and of our
// programs to the assembler that drivers have built in, and the probe's runtime program to nvcc. A simulated driver
// reads a comment of it at most.
import { execFileSync, spawnSync } from 'node:child_process';
import { mkdirSync, readdirSync, readFileSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type { ExecutionContext } from 'ava';
import { testUnless } from '../../support/gate.ts';
import { BUILD, temporaryFolder } from '../../support/native/node.ts';
import { pythonEnvironment } from '../../support/toolchains/venv.ts';

const PACKAGES = [
  'nvidia-cuda-nvcc==13.0.88',
  'nvidia-cuda-crt==13.0.88',
  'nvidia-nvvm==13.0.88',
  'nvidia-cuda-runtime==13.0.96',
  'nvidia-cuda-cccl==13.0.85',
  'nvidia-cuda-nvdisasm==13.5.37',
];
/** Turing to Blackwell: all that CUDA 13 compiles for, one of each generation. */
const ARCHITECTURES = ['sm_75', 'sm_80', 'sm_89', 'sm_90', 'sm_100', 'sm_120'];
const PROGRAMS = join(import.meta.dirname, '../../gpu/probe/programs');
/** Of ours that make a kernel. */
const WITH_A_KERNEL = ['cotenant-calibrate', 'cotenant-tenant', 'probe/events', 'bench/calls'];

const environment = pythonEnvironment(PACKAGES);
const test = testUnless(
  environment.ok ? undefined : `NVIDIA's compilers could not be installed: ${environment.reason}`,
);

function toolkit(): string {
  if (!environment.ok) throw new Error(environment.reason);
  const lib = join(environment.folder, 'lib');
  return join(lib, readdirSync(lib)[0] ?? '', 'site-packages/nvidia/cu13');
}

/** Texts in a compiled program, each to the byte that ends it. */
function textsIn(program: string): string[] {
  const texts = readFileSync(program, 'latin1').matchAll(/\.version \d+\.\d+\n\.target [^\0]*\.entry[^\0]*/g);
  return [...texts].map(([text]) => text.replace('%u', '1'));
}

const LABEL = /^\s*([.$\w]+):/;
/** Branches to what comes before them; the one to itself, with which each kernel ends, is none. */
function loopsOf(code: string, branch: RegExp): number {
  const lines = code.split('\n').filter((line) => line.trim() !== '');
  const labels = new Map<string, number>();
  let loops = 0;
  for (const [index, line] of lines.entries()) {
    const label = LABEL.exec(line)?.[1];
    if (label !== undefined) labels.set(label, index);
    const target = labels.get(branch.exec(line)?.[1] ?? '');
    if (target !== undefined && target < index - 1) loops++;
  }
  return loops;
}

function assembled(t: ExecutionContext, folder: string, name: string, text: string): void {
  const [source, object] = [join(folder, 'text.ptx'), join(folder, 'text.cubin')];
  writeFileSync(source, text);
  for (const architecture of ARCHITECTURES) {
    const bin = join(toolkit(), 'bin');
    const { status, stdout, stderr } = spawnSync(join(bin, 'ptxas'), [`-arch=${architecture}`, source, '-o', object], {
      encoding: 'utf8',
    });
    t.is(status, 0, `${name} for ${architecture}: ${stdout}${stderr}`);
    const wanted = loopsOf(text, /\bbra(?:\.uni)?\s+(\w+);/);
    if (wanted === 0) continue;
    // A loop whose result is not used is left out, and the kernel then takes no time. One may become several.
    const code = execFileSync(join(bin, 'nvdisasm'), ['-c', object], { encoding: 'utf8' });
    const kept = loopsOf(code, /\bBRA(?:\.\w+)*\s+(?:!?U?P\w+,\s*)?`\(([.$\w]+)\)/);
    t.true(kept >= wanted, `${name} for ${architecture}: ${kept} of ${wanted} loops are left:\n${code}`);
  }
}

test("NVIDIA's assembler takes the probe's launches for each architecture, with loops", (t) => {
  const result = JSON.parse(
    execFileSync('python3', [join(import.meta.dirname, 'texts.py')], {
      encoding: 'utf8',
      env: { ...process.env, PYTHONDONTWRITEBYTECODE: '1' },
    }),
  ) as { texts: Record<string, string>; entries: Record<string, number> };
  const names = Object.keys(result.texts);
  for (const [file, count] of Object.entries(result.entries)) {
    const texts = names.filter((name) => name.startsWith(`${file} `)).map((name) => result.texts[name] ?? '');
    t.is(texts.join('').split('.visible .entry').length - 1, count, `kernels of ${file}`);
  }
  t.true(names.length > 5, names.join());
  const folder = temporaryFolder(t);
  for (const [name, text] of Object.entries(result.texts)) assembled(t, folder, name, text);
});

test("NVIDIA's assembler takes our own programs for each architecture", (t) => {
  const folder = temporaryFolder(t);
  for (const program of WITH_A_KERNEL) {
    const path = join(BUILD, program);
    const texts = textsIn(path);
    t.true(texts.length > 0, `${program} has no text of a kernel`);
    for (const text of texts) assembled(t, folder, program, text);
  }
});

test("nvcc compiles the probe's runtime program with both runtimes", (t) => {
  const folder = temporaryFolder(t);
  const libraries = join(folder, 'lib');
  mkdirSync(libraries);
  // As an installed toolkit has it: the wheel lacks the name that the linker looks for.
  for (const name of readdirSync(join(toolkit(), 'lib')))
    symlinkSync(join(toolkit(), 'lib', name), join(libraries, name));
  symlinkSync('libcudart.so.13', join(libraries, 'libcudart.so'));
  for (const kind of ['static', 'shared'])
    for (const compute of ['7.5', '9.0', '12.0']) {
      const program = join(folder, `${kind}-${compute}`);
      const { status, stderr } = spawnSync(
        'python3',
        [
          '-c',
          `import sys; sys.path.insert(0, ${JSON.stringify(join(PROGRAMS, '..'))}); import tools; tools.COMPILE_S = 600; tools.compile_cuda(*sys.argv[1:])`,
          ...[join(toolkit(), 'bin/nvcc'), 'runtime.cu', program, compute, '-cudart', kind, `-L${libraries}`],
        ],
        { encoding: 'utf8', env: { ...process.env, PYTHONDONTWRITEBYTECODE: '1' } },
      );
      t.is(status, 0, `${kind} ${compute}: ${stderr}`);
    }
});
