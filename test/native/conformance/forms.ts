// Runs the rules of NVIDIA's documentation (test/conformance) in one form and compares the outcomes with the list of
// rules that are known not to be kept.
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import type { ExecutionContext } from 'ava';
import { startArbiter } from '../../support/native/arbiter.ts';
import {
  allowFabric,
  BUILD,
  environment,
  type SimulatedNode,
  startNode,
  WITHOUT_LEAK_CHECK,
} from '../../support/native/node.ts';
import { MIB, makeGrant, mountOver } from '../../support/product/grant.ts';

export const FORMS = ['bare', 'granted', 'share', 'mounted'] as const;
export type Form = (typeof FORMS)[number];

/** A line of conformance-rules. */
export type Rule = {
  readonly id: string;
  readonly source: string;
  readonly calls: string;
  readonly recalled: boolean;
  readonly granted?: string;
  readonly outcome?: 'kept' | 'broken' | 'hung' | 'died' | 'absent' | 'not-here';
  readonly detail?: string;
  readonly ms?: number;
};
/** By id, why a rule is not kept; in all forms, unless some are named. */
export type Known = Readonly<Record<string, { readonly reason: string; readonly forms?: readonly Form[] }>>;

/** A file of test/conformance/drivers: what a driver on a GPU answered, where it departs from its documentation. */
export type Observed = {
  readonly gpu: string;
  readonly cuda: number;
  /** With RULE in the place of an id. */
  readonly command: string;
  /** By id, the outcome and its detail. */
  readonly departures: Readonly<Record<string, string>>;
};

export const PROGRAM = join(BUILD, 'tests/conformance-rules');
/** As rules of what one GPU is to another want two, and others a recent one. */
const GPUS = ['h100', 'h100'];
/** Ample for every rule: refusals by the limit are asked of other tests. */
const MEMORY = 6144 * MIB;
/** Of the GPU: enough that no rule runs out of its time. */
const PERCENT = 50;

export const readKnown = (): Known =>
  JSON.parse(readFileSync(join(import.meta.dirname, '../../conformance/known.json'), 'utf8')) as Known;

const DRIVERS = join(import.meta.dirname, '../../conformance/drivers');
/** By the version of the driver. */
export const readDrivers = (): Map<string, Observed> =>
  new Map(
    readdirSync(DRIVERS).map((name) => [
      name.replace(/\.json$/, ''),
      JSON.parse(readFileSync(join(DRIVERS, name), 'utf8')) as Observed,
    ]),
  );

/** What a rule's process said, as a file of drivers has it: without the line of the source. */
export const answerOf = ({ outcome, detail = '' }: Rule): string => `${outcome}: ${detail.replace(/^line \d+: /, '')}`;

export const readRules = (output: string): Rule[] =>
  output
    .split('\n')
    .filter((line) => line !== '')
    .map((line) => JSON.parse(line) as Rule);

/** The environment of a program in one form, on a node of its own. */
async function environmentOf(t: ExecutionContext, form: Form, node: SimulatedNode): Promise<Record<string, string>> {
  if (form === 'bare') return environment({ LD_LIBRARY_PATH: node.lib });
  const share = form === 'share' ? { coresPercent: PERCENT } : {};
  const grant = makeGrant(
    t,
    node,
    GPUS.map((_, gpu) => ({ gpu, memoryBytes: MEMORY, ...share })),
  );
  if (form === 'mounted') return environment({ LD_LIBRARY_PATH: mountOver(t, node, grant).lib });
  if (form === 'share')
    await startArbiter(t).plan('fixed', [
      { id: 'tenant', grant, gpus: GPUS.map((_, gpu) => ({ gpu, percent: PERCENT })) },
    ]);
  return environment({ LD_LIBRARY_PATH: node.lib }, grant.both);
}

async function run(env: Record<string, string>, args: readonly string[]): Promise<Rule[]> {
  const child = spawn(PROGRAM, args, { env: { ...env, ...WITHOUT_LEAK_CHECK }, stdio: ['ignore', 'pipe', 'inherit'] });
  const [output, [code, signal]] = await Promise.all([text(child.stdout), once(child, 'exit')]);
  if (code !== 0) throw new Error(`${PROGRAM} ended with ${signal ?? code}`);
  return readRules(output);
}

/** Asks all rules in one form, or those that are named, of a driver of that version. */
export async function askRules(
  t: ExecutionContext,
  form: Form,
  ids: readonly string[] = [],
  cuda = 13000,
): Promise<Rule[]> {
  const node = await startNode(t, '--cuda', String(cuda), ...GPUS.flatMap((gpu) => ['--gpu', gpu]));
  allowFabric(node);
  const env = await environmentOf(t, form, node);
  const words = form === 'bare' ? [] : ['--granted'];
  return run(env, [...words, ...ids]); // one after the other: some look at how much memory is free
}

/** The answer of the driver that a reason names as its example; undefined where it names none. */
function exampleOf(id: string, reason: string): string | undefined {
  const [, driver] = /^driver: as (\S+) does$/.exec(reason) ?? [];
  return driver === undefined ? undefined : (readDrivers().get(driver)?.departures[id] ?? `unknown to ${driver}.json`);
}

/** What is wrong with the outcomes in one form, a line for each: a rule that is not kept, one that is but is listed,
 * and one that is to be answered as a driver does, but is not. */
export function complaints(rules: readonly Rule[], known: Known, form: Form): string[] {
  const isKnown = (id: string) => {
    const entry = known[id];
    return entry !== undefined && (entry.forms ?? FORMS).includes(form);
  };
  return rules.flatMap((rule) => {
    const { id, outcome, detail = '', source } = rule;
    if (outcome === 'kept') return isKnown(id) ? [`${id}: kept, but known.json lists it`] : [];
    if (!isKnown(id)) return [`${id}: ${outcome}: ${detail} [${source}]`];
    const example = exampleOf(id, known[id]?.reason ?? '');
    return example === undefined || example === answerOf(rule) ? [] : [`${id}: ${detail}, and not as ${example}`];
  });
}
