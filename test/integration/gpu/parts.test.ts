// Parts of the probe (test/gpu/probe) where a driver or a machine does not do as the simulated node does: a card that is not the
// first, calls that are refused, parts that are missing. What whole runs say is in probe.test.ts.
import { execFileSync, spawnSync } from 'node:child_process';
import { mkdirSync, symlinkSync } from 'node:fs';
import { join } from 'node:path';
import { testUnless } from '../../support/gate.ts';
import { BUILD, startNode, temporaryFolder } from '../../support/node.ts';

const PROBE = join(import.meta.dirname, '../../gpu/probe');

const noPython = spawnSync('python3', ['-c', 'import sys; sys.exit(sys.version_info < (3, 9))']).status !== 0;
const test = testUnless(noPython ? 'there is no python3, or one older than 3.9' : undefined);

/** What a few lines of Python, beside the probe's own files, print as their last line: JSON. */
function python(code: string, env: Record<string, string> = {}): unknown {
  const out = execFileSync('python3', ['-c', `import sys; sys.path.insert(0, ${JSON.stringify(PROBE)})\n${code}`], {
    encoding: 'utf8',
    env: { ...process.env, PYTHONDONTWRITEBYTECODE: '1', ...env },
  });
  return JSON.parse(out.trim().split('\n').at(-1) ?? '');
}

test('NVML is asked about the card that CUDA counts as the first, whichever its own first is', async (t) => {
  const node = await startNode(t, '--card', 'h100', '--card', 'l4');
  const names = python(
    `
import ctypes, json, os, machine
env, told = machine.asked(dict(os.environ))
os.environ.update(env)
import nvml
name = ctypes.create_string_buffer(96)
nvml.call("nvmlDeviceGetName", nvml.card(), name, len(name))
print(json.dumps([told["card"]["name"], name.value.decode()]))`,
    { LD_LIBRARY_PATH: node.lib, CUDA_VISIBLE_DEVICES: '1' },
  );
  t.deepEqual(names, ['NVIDIA L4', 'NVIDIA L4']);
});

test('a driver that is not the simulated one is not taken for it because of a flag', (t) => {
  const refused = python(`
import json, machine
def said(simulated, uuid):
    try:
        machine.refuse_other_kind(simulated, uuid)
    except machine.NoDriver as problem:
        return str(problem)
real, ours = "GPU-00000000-0000-4000-8000-000000000000", machine.SIMULATED_UUID + "04000000"
print(json.dumps([said(True, real), said(True, ours), said(False, real)]))`) as (string | null)[];
  t.regex(refused[0] ?? '', /--simulated, but the first card \(GPU-0{8}\S+\) is none of the simulator's/);
  t.deepEqual(refused.slice(1), [null, null]);
});

test('a driver that does not answer holds up the start for a while, and not for good', (t) => {
  const took = python(`
import json, machine, os, time
machine._START_S, machine._KEEPER = 0.2, "import time; time.sleep(600)"
begun = time.monotonic()
with machine._card_kept_open(dict(os.environ)):
    print(json.dumps(time.monotonic() - begun))`) as number;
  t.true(took < 60, `${took} s`);
});

test('without the engine that our object loads, no grant is made and it is named as missing', (t) => {
  const root = temporaryFolder(t);
  const build = join(root, 'native/build');
  mkdirSync(join(build, 'tests'), { recursive: true });
  const said = (): unknown =>
    python(`
import json, pathlib, grants, machine, step
root = pathlib.Path(${JSON.stringify(root)})
for module in (step, machine):
    module.ROOT, module.BUILD = root, root / "native/build"
try:
    why = None
    grants.Grant(step.Context(True, False), str(root / "grant"), 1 << 30)
except step.NotHere as reason:
    why = str(reason)
print(json.dumps({"why": why, "missing": machine.not_built()}))`);
  for (const name of ['libcotenant.so', 'libcotenant-nvml.so', 'tests/grant'])
    symlinkSync(join(BUILD, name), join(build, name));
  const { why, missing } = said() as { why: string; missing: string[] };
  t.regex(why, /^native\/build\/libcotenant-engine\.\d+\.so is not built/);
  t.true(
    missing.some((name) => /libcotenant-engine\.\d+\.so/.test(name)),
    missing.join(),
  );
});
