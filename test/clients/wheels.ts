// PyTorch's wheel, Triton's, and the NVIDIA libraries that they require: a download of 3 GB and 7 GB on disk, so not
// for every run.
import { type PythonEnvironment, pythonEnvironment } from '../support/toolchains/venv.ts';

export function wheels(): PythonEnvironment {
  if (process.env.COTENANT_CLIENTS !== 'long') return { ok: false, reason: 'in test:long only' };
  return pythonEnvironment(['torch==2.9.1', 'numpy==1.26.4']);
}
