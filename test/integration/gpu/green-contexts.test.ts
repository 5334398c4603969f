import { asked, python, test } from './asking.ts';
import { disagreements, type Observation, type StepResult } from './facts.ts';

test('missing stages of green contexts are reported and do not count as isolation', async (t) => {
  const { data, answer } = await asked(t, 'green', 'green', { faults: 'cuCtxFromGreenCtx=801' });
  t.regex(
    answer ?? '',
    /^NOT ANSWERED: in a bare process view \(cuCtxFromGreenCtx answered 801\), streams \(left out after view\), /,
  );
  t.regex(answer ?? '', /what was taken in its view is NOT ANSWERED .*; NO launch was made, /);
  const missing = data?.unansweredStages as { bare: string[]; granted: string[] };
  for (const stage of ['view', 'launchesMade', 'blockFreed']) t.true(missing.bare.includes(stage), stage);
  for (const stage of ['secondGreen', 'primaryReleased', 'secondGreenEnded'])
    t.false(missing.bare.includes(stage), stage);
  const holds = data?.holds as Record<string, boolean>;
  t.deepEqual(
    Object.entries(holds).filter(([, held]) => !held),
    [],
    'what was not asked does not fail to hold',
  );
  const run = (simulated: boolean, facts: StepResult['data']): Observation => ({
    format: 1,
    simulated,
    driver: '',
    cuda: 13000,
    steps: [{ id: 'green', questions: [], status: 'answered', answer: '', how: '', data: facts }],
  });
  const whole = { ...data, unansweredStages: { bare: [], granted: [] } };
  t.deepEqual(
    disagreements('gpu.json', run(false, data ?? {}), run(true, whole), []).map((line) => line.replace(/: \[.*/, '')),
    ['gpu.json: green/unansweredStages/bare', 'gpu.json: green/unansweredStages/granted'],
  );
});

test("memory taken in a green context's view is decided by error texts and figures", async (t) => {
  const seen = `
import json
import steps.green as step
import tools
sys.path.insert(0, str(tools.PROGRAMS))
from green import least_of, Resource
MIB = 1 << 20
def fate(codes, figures, result=0):
    names = ("heapLimit", "greenEnded", "blockFreed")
    seen = {name: {"result": 0, "gpuBytes": None if value is None else value * MIB} for name, value in zip(names, figures)}
    seen["block"] = {"result": 0}
    seen["greenEnded"].update(result=result, facts=dict(zip(("rangeResult", "attributeResult"), codes)))
    fate = step.fate_of_block(seen, "gpuBytes")
    return [fate["goesWithIt"], fate["byTheDriver"], fate["byNvml"]]
few = Resource()
print(json.dumps([
    fate((500, 1), (2520, 960, 960)), fate((0, 0), (2520, 1980, 956)), fate((201, 719), (2520, 1980, 956)),
    fate((None, 709), (2520, 1980, 1980)), fate((500, 1), (2520, 1980, 956)), fate((0, 500), (None, None, None)),
    fate((1, 1), (None, None, None)), fate((500, 1), (2520, 960, 960), result=719), least_of(few)]))`;
  t.deepEqual(await python(seen), [
    [true, true, true],
    [false, false, false],
    [false, null, false],
    [null, null, null],
    [null, true, false],
    [null, null, null],
    [true, true, null],
    [null, null, null],
    8,
  ]);
});
