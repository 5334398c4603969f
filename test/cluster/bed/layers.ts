// The contents of image layers: the pause program, a shell with the usual small programs, programs of native/build,
// Python with a real NVML client, and Cotenant. images.ts has the format.
import { execFileSync, spawnSync } from 'node:child_process';
import { cpSync, mkdirSync, readFileSync, realpathSync, statSync, symlinkSync, writeFileSync } from 'node:fs';
import { basename, dirname, join } from 'node:path';
import { stripFolder } from '../../../image/strip-types.ts';
import { engineName, enginesIn, PRELOADED } from '../../../src/agent/grants/engine-files.ts';
import { freshLayer, keptLayer, type Layer } from './images.ts';

const ROOT = join(import.meta.dirname, '../../..');
const BUILD = join(ROOT, 'native/build');

type Lock = { packages: Readonly<Record<string, { dev?: boolean; optional?: boolean }>> };

/** Changes when a file does, without reading it. */
const stampOf = (path: string): string => {
  const { size, mtimeMs } = statSync(path);
  return `${realpathSync(path)} ${size} ${mtimeMs}`;
};

/** Shared objects that programs need, including the loader, by their paths on this machine. */
function librariesOf(...programs: readonly string[]): string[] {
  const text = execFileSync('ldd', programs, { encoding: 'utf8' });
  return [...new Set([...text.matchAll(/(?:=> )?(\/\S+) \(0x/g)].map(([, path = '']) => path))];
}

/** Links a file or folder of this machine into a layer that follows links. */
function place(root: string, from: string, to: string): void {
  mkdirSync(dirname(join(root, to)), { recursive: true });
  symlinkSync(realpathSync(from), join(root, to));
}

export const pauseLayer = (home: string): Layer =>
  freshLayer(home, { follow: true }, (root) => place(root, join(BUILD, 'cluster/pause'), 'pause'));

export function busyboxLayer(packages: string): Layer {
  const busybox = ['bin/busybox', 'usr/bin/busybox'].map((path) => join(packages, path));
  const program = busybox.find((path) => spawnSync(path, ['true']).status === 0);
  if (program === undefined) throw new Error('the package busybox-static holds no busybox');
  return keptLayer('busybox', stampOf(program), { follow: false }, (root) => {
    for (const name of ['bin', 'etc', 'tmp', 'proc', 'sys', 'dev']) mkdirSync(join(root, name), { recursive: true });
    cpSync(program, join(root, 'bin/busybox'));
    const applets = execFileSync(program, ['--list'], { encoding: 'utf8' }).split('\n').filter(Boolean);
    for (const applet of applets) if (applet !== 'busybox') symlinkSync('busybox', join(root, 'bin', applet));
    writeFileSync(join(root, 'etc/passwd'), 'root:x:0:0:root:/:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n');
  });
}

/**
 * The Node.js of the tests and the production packages: large, and unchanged until something is installed. Without type
 * declarations and source maps, which are half of the files and not read at run time.
 */
export function nodeLayer(checkout = ROOT): Layer {
  const installed = join(checkout, 'node_modules/.package-lock.json');
  const libraries = librariesOf(process.execPath);
  const key = [readFileSync(installed, 'utf8'), ...[process.execPath, ...libraries].map(stampOf)].join('\n');
  return keptLayer('node', key, { follow: true, without: ['*.d.ts', '*.d.mts', '*.d.cts', '*.map'] }, (root) => {
    place(root, process.execPath, 'usr/local/bin/node');
    for (const path of libraries) place(root, path, path);
    const { packages } = JSON.parse(readFileSync(join(checkout, 'package-lock.json'), 'utf8')) as Lock;
    const paths = Object.keys(packages).filter(
      (path) => path !== '' && !packages[path]?.dev && !packages[path]?.optional,
    );
    // A nested package comes with the outer one.
    const outer = paths.filter((path) => !paths.some((other) => path.startsWith(`${other}/`)));
    for (const path of outer) place(root, join(checkout, path), join('opt/cotenant', path));
  });
}

/** A checkout, as the Dockerfile takes it. */
export const ownLayer = (home: string, checkout = ROOT): Layer =>
  freshLayer(home, { follow: true }, (root) => {
    const programs = [
      'cotenant.node',
      'cotenant-arbitrate',
      'cotenant-calibrate',
      'cotenant-canary',
      'cotenant-limits',
      'cotenant-sampler',
      ...PRELOADED,
      ...enginesIn(join(checkout, 'native/build')).map(engineName),
    ];
    for (const path of ['package.json', 'LICENSE', ...programs.map((name) => join('native/build', name))]) {
      place(root, join(checkout, path), join('opt/cotenant', path));
    }
    for (const path of ['native/build.ts', 'src', 'webhook']) {
      cpSync(join(checkout, path), join(root, 'opt/cotenant', path), { recursive: true });
    }
    stripFolder(join(root, 'opt/cotenant'));
    for (const name of ['tmp', 'proc', 'sys', 'dev', 'etc', 'var/lib', 'var/run', 'run']) {
      mkdirSync(join(root, name), { recursive: true });
    }
  });

/** One of the cluster's own programs. */
export const kubeSchedulerLayer = (bin: string): Layer =>
  keptLayer('kube-scheduler', stampOf(join(bin, 'kube-scheduler')), { follow: true }, (root) => {
    for (const name of ['tmp', 'proc', 'sys', 'dev', 'etc']) mkdirSync(join(root, name));
    place(root, join(bin, 'kube-scheduler'), 'usr/local/bin/kube-scheduler');
  });

/** Programs of native/build in /bin, with the C library that they were linked with; goes over busybox. */
export const programsLayer = (home: string, ...programs: readonly string[]): Layer =>
  freshLayer(home, { follow: true }, (root) => {
    const paths = programs.map((program) => join(BUILD, program));
    for (const library of librariesOf(...paths)) place(root, library, library);
    for (const path of paths) place(root, path, join('bin', basename(path)));
  });

/** Path of a loader that reads another preload list, like one built with another prefix. */
export const FOREIGN_LOADER = '/bin/foreign-loader';
const PRELOAD_LIST = '/etc/ld.so.preload';

/** This machine's loader with one path changed: programs that it starts ignore /etc/ld.so.preload. */
export const foreignLoaderLayer = (home: string): Layer =>
  freshLayer(home, { follow: false }, (root) => {
    const loader = librariesOf(process.execPath).find((path) => basename(path).startsWith('ld-'));
    const text = loader === undefined ? '' : readFileSync(loader, 'latin1');
    if (text.split(PRELOAD_LIST).length !== 2)
      throw new Error(`the C library's loader does not name ${PRELOAD_LIST} once`);
    mkdirSync(join(root, 'bin'));
    const changed = text.replace(PRELOAD_LIST, PRELOAD_LIST.replace('preload', 'elsewhr'));
    writeFileSync(join(root, FOREIGN_LOADER), changed, { encoding: 'latin1', mode: 0o755 });
  });

export const PYTHON_FOLDER = '/opt/client';
const SCRIPT = join(import.meta.dirname, '../images/gpus.py');
/** The modules that a script imports, as its interpreter finds them. */
const LOADED = `
import json, sys
sys.path.insert(0, sys.argv[1])
import pynvml, time
print(json.dumps([m.__file__ for m in list(sys.modules.values()) if getattr(m, "__file__", None)]))`;

/** This machine's Python at its own path, with nvidia-ml-py, the modules it needs, and our script. */
export function pythonLayer(python: string): { layer: Layer; interpreter: string } {
  const tell = (program: string, script: string, ...args: readonly string[]): string[] =>
    JSON.parse(execFileSync(program, ['-c', script, ...args], { encoding: 'utf8' }));
  const facts = 'import json, os, sys, sysconfig, pynvml; print(json.dumps([os.path.realpath(sys._base_executable), ';
  const [interpreter = '', library = '', nvml = ''] = tell(
    python,
    `${facts} sysconfig.get_path("stdlib"), pynvml.__file__]))`,
  );
  const modules = tell(interpreter, LOADED, dirname(nvml)).filter((path) => path.startsWith(`${library}/`));
  const shared = librariesOf(interpreter, ...modules.filter((path) => path.endsWith('.so')));
  const taken = [...new Set([interpreter, ...shared, ...modules])];
  // The script is keyed by its content, because each checkout has its own file.
  const key = [...[...taken, nvml].map(stampOf), readFileSync(SCRIPT, 'utf8')].join('\n');
  const layer = keptLayer('python', key, { follow: true }, (root) => {
    for (const path of taken) place(root, path, path);
    place(root, nvml, join(PYTHON_FOLDER, 'pynvml.py'));
    place(root, SCRIPT, join(PYTHON_FOLDER, 'gpus.py'));
  });
  return { layer, interpreter };
}
