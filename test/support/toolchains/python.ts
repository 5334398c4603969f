// Third-party clients from the Python registry: NVIDIA's driver bindings, nvidia-ml-py, gpustat, nvitop; and the
// headers of CUDA 13.0, with which the committed facts are compared. Where they cannot be installed, tests are skipped
// with the reason.
import { execFileSync } from 'node:child_process';
import { readdirSync } from 'node:fs';
import { join } from 'node:path';
import { pythonEnvironment } from './venv.ts';

const PACKAGES = [
  'cuda-bindings==13.0.3',
  'nvidia-ml-py==13.615.71',
  'gpustat==1.1.1',
  'nvitop==1.7.2',
  'nvidia-cuda-runtime==13.0.96',
  'nvidia-cuda-cupti==13.0.85',
];

export type PythonClients =
  | { readonly ok: true; readonly python: string; readonly bin: string; readonly include: string }
  | { readonly ok: false; readonly reason: string; readonly include: string };

let found: PythonClients | undefined;

export function pythonClients(): PythonClients {
  found ??= install();
  return found;
}

function install(): PythonClients {
  const environment = pythonEnvironment(PACKAGES);
  if (!environment.ok) {
    return { ok: false, reason: `the Python clients could not be installed: ${environment.reason}`, include: '' };
  }
  const { folder } = environment;
  const python = join(folder, 'bin/python');
  execFileSync(python, ['-c', 'import cuda.bindings.driver, pynvml, gpustat, nvitop']);
  const [lib = ''] = readdirSync(join(folder, 'lib'));
  const include = join(folder, 'lib', lib, 'site-packages/nvidia/cu13/include');
  return { ok: true, python, bin: join(folder, 'bin'), include };
}
