// The canary: on each card, a small program of ours in a grant of its own that it tries to exceed, with the interposer that
// containers are given. Owns when that is tried, its files and its process; what the answers prove is src/quota/canary.ts.
import { closeSync, mkdirSync, rmSync, statSync, symlinkSync } from 'node:fs';
import { dirname, join } from 'node:path';
import {
  BEYOND_BYTES,
  type CanaryFacts,
  type CanaryRun,
  type CanaryVerdict,
  type FenceState,
  fenceState,
  isUnclear,
  MOST_TAKEN_BYTES,
  ROOM_BYTES,
  verdictOf,
  WITHIN_BYTES,
} from '../quota/canary.ts';
import { engineName, enginesIn, PRELOADED } from './engines.ts';
import { makeFile } from './grants/files.ts';
import type { CardProfile } from './grants/registry.ts';
import { BUILD_FOLDER, type Native } from './native.ts';
import type { Tools } from './tools.ts';

export type CanaryOptions = {
  readonly native: Native;
  readonly tools: Tools;
  readonly stateFolder: string;
  readonly cudaLibrary: string;
  readonly profileOf: (gpuUuid: string) => CardProfile;
  /** The engine that grants shall run; none: the newest of the build. */
  readonly heldEngine?: number | undefined;
  readonly onProblem: (text: string) => void;
  /** What was said of a card does not hold any more. */
  readonly onChange: (text: string) => void;
  /** A clock that nobody sets, in milliseconds. */
  readonly clock: () => number;
};

export type CanaryCard = {
  readonly gpuUuid: string;
  /** What neither grants nor programs have of it. */
  readonly roomBytes: number;
};

export type Canary = {
  /** Of the driver that is there now: what was said with another one, or with other files of ours, does not count any more. */
  notice(driverVersion: string): void;
  /** Tries where it is due, one card after the other. Never throws. */
  check(cards: readonly CanaryCard[]): Promise<void>;
  /** Undefined: not tried yet, with this driver and this interposer. */
  of(gpuUuid: string): CanaryVerdict | undefined;
  state(gpuUuids: readonly string[]): FenceState | undefined;
};

const TIMEOUT_MS = 20_000;
const RETRY_MS = 10_000;
/** Of a card that was not measured; contexts of today's cards are smaller. */
const ASSUMED_CONTEXT_BYTES = 1024 ** 3;
const SLOTS = 16;
/** The name by which programs ask for the driver; a whole path leads a preloaded interposer by. */
const DRIVER = 'libcuda.so.1';

type Tried = { readonly key: string; readonly atMs: number; readonly verdict: CanaryVerdict };

export function createCanary(options: CanaryOptions): Canary {
  const { native, tools, stateFolder, cudaLibrary, profileOf, onProblem, onChange, clock } = options;
  const tried = new Map<string, Tried>();
  let key = '';

  /** Of the files that containers get: another one is another fence. */
  const identity = (): string => {
    const files = [...PRELOADED, ...enginesIn(BUILD_FOLDER).map(engineName)];
    return files
      .map((name) => {
        const file = statSync(join(BUILD_FOLDER, name), { throwIfNoEntry: false });
        return `${name} ${file?.dev} ${file?.ino} ${file?.size} ${file?.mtimeMs}`;
      })
      .join(' ');
  };

  const runOnce = async (gpuUuid: string, preload: string): Promise<CanaryRun | undefined> => {
    const { LD_PRELOAD: _, LD_LIBRARY_PATH: inherited = '', ...env } = process.env;
    const folders = [...(cudaLibrary.includes('/') ? [dirname(cudaLibrary)] : []), ...(inherited ? [inherited] : [])];
    const args = ['--within', String(WITHIN_BYTES), '--beyond', String(BEYOND_BYTES), '--cuda', DRIVER];
    const answer = await tools.run({
      program: 'cotenant-canary',
      args,
      env: {
        ...env,
        CUDA_VISIBLE_DEVICES: gpuUuid,
        ...(folders.length > 0 && { LD_LIBRARY_PATH: folders.join(':') }),
        ...(preload && { LD_PRELOAD: preload }),
      },
      timeoutMs: TIMEOUT_MS,
    });
    if (!answer) return undefined;
    try {
      return JSON.parse(answer.stdout) as CanaryFacts;
    } catch {
      return { broken: answer.problem ?? 'it said nothing that can be read' };
    }
  };

  const fenced = async (gpuUuid: string): Promise<CanaryRun | undefined> => {
    const folder = join(stateFolder, 'canary');
    rmSync(folder, { recursive: true, force: true });
    mkdirSync(folder, { recursive: true, mode: 0o755 });
    const engines = enginesIn(BUILD_FOLDER);
    for (const name of [...PRELOADED, ...engines.map(engineName)])
      symlinkSync(join(BUILD_FOLDER, name), join(folder, name));
    const profile = profileOf(gpuUuid);
    const card = {
      uuid: gpuUuid,
      ...profile,
      memoryBytes: profile.contextBytes + ROOM_BYTES,
      coresPercent: 0,
    };
    const engine = options.heldEngine ?? engines.at(-1);
    const page = makeFile(join(folder, 'limits'), 0o644);
    const ledger = makeFile(join(folder, 'ledger'), 0o666);
    try {
      native.writePage(page, { slots: SLOTS, isolateMemory: true, engine, cards: [card] });
      native.initLedger(ledger, SLOTS, 1);
      return await runOnce(gpuUuid, PRELOADED.map((name) => join(folder, name)).join(' '));
    } finally {
      closeSync(page);
      closeSync(ledger);
      rmSync(folder, { recursive: true, force: true });
    }
  };

  /** Undefined: the driver was given up meanwhile. */
  const tryCard = async ({ gpuUuid, roomBytes }: CanaryCard): Promise<CanaryVerdict | undefined> => {
    // Who has a grant may fill it at any moment: the canary must not be what is in the way.
    const need = (profileOf(gpuUuid).contextBytes || ASSUMED_CONTEXT_BYTES) + MOST_TAKEN_BYTES;
    if (roomBytes < need) return { result: 'untried', why: `there is no room to try: ${need} bytes are needed` };
    try {
      const first = await fenced(gpuUuid);
      if (!first || !isUnclear(first)) return first && verdictOf(first);
      const alone = await runOnce(gpuUuid, '');
      return alone && verdictOf(first, alone);
    } catch (error) {
      return { result: 'untried', why: (error as Error).message };
    }
  };

  const tell = (gpuUuid: string, verdict: CanaryVerdict, before: CanaryVerdict | undefined): void => {
    if (verdict.result === before?.result && verdict.why === before.why) return;
    if (verdict.result === 'fails')
      onProblem(
        `the interposer does not hold a container to its grant on ${gpuUuid}, and nothing is granted there: ${verdict.why}`,
      );
    else if (verdict.result === 'untried')
      onProblem(`whether the interposer holds on ${gpuUuid} could not be tried: ${verdict.why}`);
    else if (before !== undefined) onChange(`the interposer holds containers to their grants on ${gpuUuid} again`);
  };

  const current = (gpuUuid: string): CanaryVerdict | undefined => {
    const last = tried.get(gpuUuid);
    return last?.key === key || last?.verdict.result === 'fails' ? last.verdict : undefined;
  };

  return {
    notice(driverVersion) {
      key = `${driverVersion} ${identity()}`;
    },
    async check(cards) {
      for (const card of cards) {
        const of = key;
        const last = tried.get(card.gpuUuid);
        const isSettled = last?.verdict.result === 'holds' || (last && clock() - last.atMs < RETRY_MS);
        if (last?.key === of && isSettled) continue;
        const found = await tryCard(card);
        if (!found) return;
        // What was seen to fail fails until it is seen to hold.
        const verdict =
          last?.key === of && last.verdict.result === 'fails' && found.result === 'untried' ? last.verdict : found;
        tried.set(card.gpuUuid, { key: of, atMs: clock(), verdict });
        tell(card.gpuUuid, verdict, last?.verdict);
      }
    },
    of: current,
    state: (gpuUuids) => fenceState(gpuUuids.map((gpuUuid) => ({ gpuUuid, verdict: current(gpuUuid) }))),
  };
}
