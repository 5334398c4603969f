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
export type Disagreement = { readonly observation: string; readonly fact: string; readonly reason: string };

/** Facts that a driver and the simulated one must agree on: a step's id, then keys of its data. */
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
  ...['bare', 'preload', 'mounted'].flatMap((form) =>
    ['ran', 'correct', 'withinResult', 'aboveResult', 'afterResult'].map(
      (key) => `runtime.driver/programs/driver/${form}/${key}`,
    ),
  ),
  'runtime.driver/programs/driver/preload/totalBytes',
  'runtime.driver/programs/driver/mounted/totalBytes',
  'rounding.linear/linear',
  'rounding.arrays/arrays',
  'rounding.pitch/commonDivisorBytes',
  'rounding.pitch/pitch',
  'rounding.vmm',
  'rounding.host',
  'rounding.managed/managed',
  'rounding.pools/thresholdZero',
  'rounding.pools/thresholdHigh',
  'residuals/added',
  'nvml.stride/lists',
  'nvml.detail/modes/compute/code',
  'nvml.detail/modes/compute/entryBytes',
  'nvml.detail/modes/graphics/code',
  'nvml.detail/modes/mps/code',
  'nvml.detail/modes/all/code',
  'nvml.detail/secondVersionCode',
  'nvml.detail/sameAsComputeList',
  'nvml.memory/changes',
  'nvml.zombies/stopped/listed',
  'nvml.zombies/zombie/listed',
  'nvml.zombies/zombie/cardBytes',
  'nvml.zombies/reaped/listed',
  'nvml.zombies/killedWithForkedChild/listed',
  'nvml.zombies/killedWithForkedChild/heirListed',
  'nvml.zombies/heirGone/listed',
  'nvml.utilization/nullBuffer',
  'nvml.pidnamespace/inside/computeList',
  'nvml.pidnamespace/outside/computeList',
  'leases/allLaunchesCounted',
  'mps/memory/lists',
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
 * What is wrong between an observation and the simulated node: facts that differ, and steps that gave none, which are not
 * listed (of a simulated run none may be), and listed ones that do not differ.
 */
export function disagreements(
  name: string,
  observed: Observation,
  simulated: Observation,
  known: readonly Disagreement[],
  compared: readonly string[] = COMPARED,
): string[] {
  const listed = known.filter((entry) => entry.observation === name);
  const covers = (entry: Disagreement, fact: string) => fact === entry.fact || fact.startsWith(`${entry.fact}/`);
  const found = [
    ...compared.flatMap((path) => differences(path, factAt(observed, path), factAt(simulated, path))),
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
