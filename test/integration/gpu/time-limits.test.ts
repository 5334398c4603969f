import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { temporaryFolder } from '../../support/native/node.ts';
import { python, test } from './asking.ts';

test('a step that no signal ends is reported and does not hold up the probe', async (t) => {
  const folder = temporaryFolder(t);
  mkdirSync(join(folder, 'steps'));
  const steps = `
import time
from step import Step
ALL = (Step("deaf", (), "hangs in the driver", 20, lambda context: time.sleep(60)),)
`;
  writeFileSync(join(folder, 'steps/__init__.py'), steps);
  // A signal that does nothing stands for a process that takes none.
  const { result, took, group, row } = (await python(
    `
import json, os, signal, time, probe
kill, killed = os.killpg, []
probe.os.killpg = lambda group, number: killed.append(group)
probe.END_S, probe.GONE_S = 0.2, 0.2
begun = time.monotonic()
result = probe.run_outside(probe.ALL[0], [], dict(os.environ), 1.0)
took = time.monotonic() - begun
kill(killed[0], signal.SIGKILL)
print(json.dumps({"result": result, "took": took, "group": killed[0], "row": probe.row(result)}))`,
    { COTENANT_PROBE_STEPS: folder },
  )) as { result: Record<string, unknown>; took: number; group: number; row: string };
  t.is(result.status, 'out of time');
  const left = result.left as { pid: number; name: string; state: string }[];
  t.deepEqual(
    left.map(({ pid }) => pid),
    [group],
  );
  t.regex(left[0]?.name ?? '', /python/);
  t.regex(row, new RegExp(`STILL THERE, although killed: ${group} \\(python`));
  t.true(took < 30, `${took} s`);
});

test('the time until the first step begins is of the total', async (t) => {
  const folder = temporaryFolder(t);
  mkdirSync(join(folder, 'steps'));
  const steps = `
from step import Answer, Step
ALL = (Step("fine", (), "answers", 20, lambda context: Answer("yes", "looked", {})),)
`;
  writeFileSync(join(folder, 'steps/__init__.py'), steps);
  const said = await python(
    `
import contextlib, io, json, os, time, probe
@contextlib.contextmanager
def slow(simulated):
    time.sleep(1.5)
    yield dict(os.environ), {"driver": "1", "cuda": 13000, "gpu": {"name": "gpu", "compute": "9.0", "totalBytes": 1}}
probe.machine.node = slow
sys.argv = ["probe.py", "--simulated", "--total", "6"]
with contextlib.redirect_stdout(io.StringIO()) as out:
    code = probe.main()
print(json.dumps([code, out.getvalue()]))`,
    { COTENANT_PROBE_STEPS: folder },
  );
  const [code, text] = said as [number, string];
  t.is(code, 1);
  t.regex(text, /out of time +fine .*\n +the probe's 6 s are used up/);
});

test("a later kind of program keeps others' results and has time to read the disk", async (t) => {
  const seen = await python(`
import json
from steps import runtime
from step import Context
notes, times, ran = [], [], {"bare": False, "preload": True, "mounted": True}
at = runtime.Ground.__new__(runtime.Ground)
at.context, at.slice = Context(True, False, note=lambda data: notes.append(json.loads(json.dumps(data)))), 1
def run(form, program, timeout_s, **env):
    times.append(timeout_s)
    return {"ran": True, "startSeconds": 1.0, "totalBytes": 1} if ran[form] else {"ran": False, "why": "not"}
at.run, at.leased = run, lambda *_, **__: {"ran": False, "why": "not"}
at.compare("shared", {"static": {"known": True}}, ["program"], 1, 10)
print(json.dumps([sorted(notes[-1]["programs"]), notes[-1]["programs"]["static"], times]))`);
  t.deepEqual(seen, [['shared', 'static'], { known: true }, [30, 30, 10]]);
});

test('a program that takes too long is reported as out of time, not as failing', async (t) => {
  const words = await python(`
import json, tools
from steps import runtime
late = tools.run(["sleep", "60"], tools.environment(), 0.1)
print(json.dumps([runtime.verdict(late, 1), runtime.verdict(tools.run(["false"], tools.environment(), 20), 1)]))`);
  t.deepEqual(words, ['out of time (not within 0.1 s)', 'did not run (ended with 1: )']);
});

test('a process whose name is no text does not end the probe', async (t) => {
  const names = await python(`
import ctypes, json, os, probe
PR_SET_NAME = 15
ctypes.CDLL(None).prctl(PR_SET_NAME, b"a\\xff", 0, 0, 0)
print(json.dumps([one["name"] for one in probe.living(os.getpgid(0)) if one["pid"] == os.getpid()]))`);
  t.deepEqual(names, ['a\ufffd']);
});
