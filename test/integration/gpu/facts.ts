// What a run of the probe found out, and how two runs are compared: which facts, and where they differ. Pure.

export type Observation = {
  readonly format: number;
  readonly simulated: boolean;
  readonly driver: string;
  readonly cuda: number;
  readonly steps: readonly StepResult[];
};
export type StepResult = {
  readonly id: string;
  readonly questions: readonly string[];
  readonly status: 'answered' | 'not here' | 'failed' | 'out of time';
  readonly answer: string;
  readonly how: string;
  readonly data: Facts;
  readonly said?: string;
  /** How the step's process ended, if not well, once it had answered. */
  readonly afterwards?: string;
};
type Facts = { readonly [key: string]: unknown };

/** A difference that does no harm. `fact` is a path, `STEP/KEY/KEY`, and covers all below it. */
export type Disagreement = { readonly observations: readonly string[]; readonly fact: string; readonly reason: string };

const COMPUTE_LISTS = ['', '_v2', '_v3'].map((version) => `nvmlDeviceGetComputeRunningProcesses${version}`);

/**
 * Facts that a driver and the simulated one must agree on: a step's id, then keys of its data; `*` is each key. They
 * are rules on which something here relies. What is a GPU's, a driver's or a machine's own (how much a context takes,
 * how far rows are padded, who else uses the GPU) is in the data, and not compared.
 */
export const COMPARED: readonly string[] = [
  'exports/notInTable',
  'exports/missing',
  'identity/notFound',
  'identity/secondLookUpDiffers',
  'identity/withoutFlagDiffers',
  'identity/differsFromExport',
  'identity/noSymbolBeginsThere',
  'identity/namedOtherwise',
  'identity/newerVariant',
  'identity/newerFound',
  ...['ran', 'correct', 'withinResult', 'aboveResult', 'afterResult', 'seesSlice'].map(
    (key) => `runtime.driver/programs/driver/*/${key}`,
  ),
  'runtime.driver/programs/driver/leased/launchesCounted',
  'rounding.linear/linear',
  'rounding.arrays/arrays',
  'rounding.pitch/padsLikeOneByte',
  'rounding.pitch/takesItsRows',
  'rounding.vmm',
  'rounding.host',
  'rounding.managed/managed',
  ...['held', 'freedAndSynchronized', 'trimmed', 'afterDestroyGpuBytes'].flatMap((state) => [
    `rounding.pools/thresholdZero/*/${state}`,
    `rounding.pools/thresholdHigh/*/${state}`,
  ]),
  'rounding.ordered/*/givenBackBy/eventSynchronize',
  'rounding.ordered/*/givenBackBy/streamSynchronize',
  ...['result', 'still', 'gpuBytes', 'atTheEndBytes', 'addressFreeResult'].map((key) => `mappings.gaps/*/${key}`),
  'pools.imported/*/result',
  'pools.imported/sameHandle',
  'pools.imported/sameAddress',
  'residuals/ledgerFollows',
  'green/holds',
  'green/unansweredStages',
  'green/whatWasTakenInTheView/goesWithIt',
  'green/sameInAGrant',
  'green/ledgerFollows',
  'green/allLaunchesCounted',
  'nvml.stride/lists/*/exists',
  'nvml.stride/lists/*/code',
  ...COMPUTE_LISTS.flatMap((name) =>
    ['entryBytes', 'noBuffer/code', 'roomForOne/code'].map((key) => `nvml.stride/lists/${name}/${key}`),
  ),
  'nvml.detail/modes/compute/code',
  'nvml.detail/modes/compute/entryBytes',
  'nvml.detail/modes/graphics/code',
  'nvml.detail/modes/mps/code',
  'nvml.detail/modes/all/code',
  'nvml.detail/secondVersionCode',
  'nvml.detail/sameAsComputeList',
  'nvml.memory/blocks',
  'nvml.memory/refused',
  'nvml.sampler/allNamed',
  'nvml.sampler/allBytesRight',
  'nvml.zombies/*/keepsBlock',
  'nvml.zombies/stopped/listed',
  'nvml.zombies/zombie/listed',
  'nvml.zombies/reaped/listed',
  'nvml.zombies/killedWithForkedChild/listed',
  'nvml.zombies/killedWithForkedChild/heirListed',
  'nvml.zombies/heirGone/listed',
  'nvml.utilization/nullBuffer',
  'nvml.pidnamespace/inside/computeList',
  'nvml.pidnamespace/outside/computeList',
  'leases/allLaunchesCounted',
  'leases.small/allLaunchesCounted',
  'gating.standin/allRight',
  'gating.standin/noneStuck',
  'gating.standin/noneFailed',
  'gating.standin/allLaunchesCounted',
  ...['streams', 'ranks'].flatMap((name) =>
    ['ended', 'right', 'launches', 'failed'].map((key) => `gating.waits/${name}/*/${key}`),
  ),
  'mps/memory/clients',
];

/** By their names: times differ from run to run, facts do not. */
const isTime = (key: string) => /(Seconds|Ns|Us|[a-z]S)$/.test(key);

const isFacts = (value: unknown): value is Facts =>
  typeof value === 'object' && value !== null && !Array.isArray(value);

/** The fact at a path of COMPARED; undefined where this run says nothing of it. */
export function factAt(observation: Observation, path: string): unknown {
  const [id, ...keys] = path.split('/');
  const step = observation.steps.find((entry) => entry.id === id);
  if (step?.status !== 'answered') return undefined;
  let value: unknown = step.data;
  for (const key of keys) value = isFacts(value) ? value[key] : undefined;
  return value;
}

/** The paths of an observation that a path of COMPARED stands for. Where it says nothing of it, none. */
export function pathsOf(observation: Observation, path: string): string[] {
  const at = path.indexOf('/*');
  if (at < 0) return factAt(observation, path) === undefined ? [] : [path];
  const [before, after] = [path.slice(0, at), path.slice(at + 2)];
  const facts = factAt(observation, before);
  return Object.keys(isFacts(facts) ? facts : {}).flatMap((key) => pathsOf(observation, `${before}/${key}${after}`));
}

/** Paths of facts of which both sides speak and which differ, each with both values. */
function differences(path: string, left: unknown, right: unknown): { fact: string; values: string }[] {
  if (left === undefined || right === undefined) return [];
  if (isFacts(left) && isFacts(right)) {
    return Object.keys(left)
      .filter((key) => !isTime(key))
      .flatMap((key) => differences(`${path}/${key}`, left[key], right[key]));
  }
  const [one, other] = [JSON.stringify(left), JSON.stringify(right)];
  return one === other ? [] : [{ fact: path, values: `${one}, simulated ${other}` }];
}

/**
 * What is wrong between an observation and the simulated node: facts that differ, and steps that gave none, which are
 * not listed (of a simulated run none may be), and listed ones that do not differ.
 */
export function disagreements(
  name: string,
  observed: Observation,
  simulated: Observation,
  known: readonly Disagreement[],
  compared: readonly string[] = COMPARED,
): string[] {
  const listed = known.filter((entry) => entry.observations.includes(name));
  const covers = (entry: Disagreement, fact: string) => fact === entry.fact || fact.startsWith(`${entry.fact}/`);
  const found = [
    ...compared
      .flatMap((path) => pathsOf(observed, path))
      .flatMap((path) => differences(path, factAt(observed, path), factAt(simulated, path))),
    ...observed.steps
      .filter(({ status }) => status === 'failed' || status === 'out of time')
      .map(({ id, status, answer }) => ({ fact: id, values: `${status}: ${answer}` })),
  ];
  const excused = (fact: string) => !observed.simulated && listed.some((entry) => covers(entry, fact));
  return [
    ...found.filter(({ fact }) => !excused(fact)).map(({ fact, values }) => `${name}: ${fact}: ${values}`),
    ...listed
      .filter((entry) => !found.some(({ fact }) => covers(entry, fact)))
      .map((entry) => `${name}: ${entry.fact} is listed and does not disagree`),
  ];
}
