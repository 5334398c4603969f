// Runs Python beside the probe's files (test/gpu/probe), or one of its steps on a simulated node.
import { execFile, spawnSync } from 'node:child_process';
import { join } from 'node:path';
import { promisify } from 'node:util';
import type { ExecutionContext } from 'ava';
import { testUnless } from '../../support/gate.ts';
import { startNode } from '../../support/native/node.ts';

export const PROBE = join(import.meta.dirname, '../../gpu/probe');

const noPython = spawnSync('python3', ['-c', 'import sys; sys.exit(sys.version_info < (3, 9))']).status !== 0;
export const test = testUnless(noPython ? 'there is no python3, or one older than 3.9' : undefined);

/** What a few lines of Python, beside the probe's own files, print as their last line: JSON. */
export async function python(code: string, env: Record<string, string> = {}): Promise<unknown> {
  const { stdout } = await promisify(execFile)(
    'python3',
    ['-c', `import sys; sys.path.insert(0, ${JSON.stringify(PROBE)})\n${code}`],
    {
      encoding: 'utf8',
      env: { ...process.env, PYTHONDONTWRITEBYTECODE: '1', ...env },
    },
  );
  return JSON.parse(stdout.trim().split('\n').at(-1) ?? '');
}

type Seen = { notes: Record<string, unknown>[]; answer?: string; data?: Record<string, unknown>; problem?: string };
type How = {
  /** Lines of Python that run before the step. */
  readonly patch?: string;
  readonly faults?: string;
};

/** Runs a function of a step in a process with a simulated node: what it noted, and its answer or the error. */
export async function asked(t: ExecutionContext, module: string, run: string, how: How = {}): Promise<Seen> {
  const node = await startNode(t, '--gpu', 'h100');
  return (await python(
    `
import importlib, json
from step import Context, NotHere
step = importlib.import_module("steps.${module}")
${how.patch ?? ''}
notes, said = [], {}
try:
    found = step.${run}(Context(True, True, note=lambda data: notes.append(json.loads(json.dumps(data)))))
    said = {"answer": found.answer, "data": found.data}
except Exception as problem:
    said = {"problem": f"{type(problem).__name__}: {problem}"}
print(json.dumps({"notes": notes, **said}))`,
    { LD_LIBRARY_PATH: node.lib, COTENANT_PROBE_NODE: node.folder, COTENANT_SIM_FAULTS: how.faults ?? '' },
  )) as Seen;
}
