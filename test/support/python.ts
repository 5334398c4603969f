// Client programs that nobody here wrote, from the Python registry: NVIDIA's driver bindings, nvidia-ml-py, gpustat, nvitop;
// and the headers of CUDA 13.0, against which the committed facts are compared. Installed once into a folder outside the
// checkout, keyed by what is in it; where that is not possible, tests are skipped with the reason.
import { execFileSync, spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { existsSync, mkdirSync, readdirSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { homedir } from 'node:os';
import { join } from 'node:path';

const PACKAGES = [
  'cuda-bindings==13.0.3',
  'nvidia-ml-py==13.615.71',
  'gpustat==1.1.1',
  'nvitop==1.7.2',
  'nvidia-cuda-runtime==13.0.96',
  'nvidia-cuda-cupti==13.0.85',
];

export const cacheFolder = (): string =>
  process.env.COTENANT_CACHE ?? join(process.env.XDG_CACHE_HOME ?? join(homedir(), '.cache'), 'cotenant');

export type PythonClients =
  | { readonly ok: true; readonly python: string; readonly bin: string; readonly include: string }
  | { readonly ok: false; readonly reason: string; readonly include: string };

let found: PythonClients | undefined;

export function pythonClients(): PythonClients {
  found ??= install();
  return found;
}

function install(): PythonClients {
  const version = spawnSync('python3', ['-c', 'import sys; print("%d.%d" % sys.version_info[:2])'], {
    encoding: 'utf8',
  });
  if (version.status !== 0) return { ok: false, reason: 'python3 is not installed', include: '' };
  const key = createHash('sha256')
    .update(`${version.stdout}${PACKAGES.join('\n')}`)
    .digest('hex')
    .slice(0, 16);
  const folder = join(cacheFolder(), `python-${key}`);
  if (!existsSync(join(folder, 'complete'))) {
    console.error(`installing ${PACKAGES.join(', ')} for the tests`);
    const fresh = `${folder}.${process.pid}`;
    mkdirSync(cacheFolder(), { recursive: true });
    const made = spawnSync('python3', ['-m', 'venv', '--copies', fresh], { encoding: 'utf8' });
    const installed =
      made.status === 0
        ? spawnSync(
            join(fresh, 'bin/python'),
            ['-m', 'pip', 'install', '--quiet', '--disable-pip-version-check', ...PACKAGES],
            { encoding: 'utf8' },
          )
        : made;
    if (installed.status !== 0) {
      rmSync(fresh, { recursive: true, force: true });
      const last = `${installed.stdout ?? ''}${installed.stderr ?? ''}`.trim().split('\n').at(-1) ?? '';
      return { ok: false, reason: `the Python clients could not be installed: ${last}`, include: '' };
    }
    writeFileSync(join(fresh, 'complete'), '');
    // Somebody else may have been faster; theirs is as good.
    if (existsSync(folder)) rmSync(fresh, { recursive: true, force: true });
    else renameSync(fresh, folder);
  }
  const python = join(folder, 'bin/python');
  execFileSync(python, ['-c', 'import cuda.bindings.driver, pynvml, gpustat, nvitop']);
  const [lib = ''] = readdirSync(join(folder, 'lib'));
  const include = join(folder, 'lib', lib, 'site-packages/nvidia/cu13/include');
  return { ok: true, python, bin: join(folder, 'bin'), include };
}
