// What this node's cards really cost, measured by a process of its own, kept by card and driver so that a restart does not
// measure again. Without it the interposer charges a context only when the agent has seen it.
import { existsSync, readFileSync, renameSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { type CardProfile, UNMEASURED } from './grants/registry.ts';
import type { Tools } from './tools.ts';

export type Profiles = {
  of(gpuUuid: string): CardProfile;
  /** Measures the cards that were not measured with this driver; true when anything is new. */
  measure(cards: readonly string[], driverVersion: string): Promise<boolean>;
};

type Stored = CardProfile & { readonly driverVersion: string };
const TIMEOUT_MS = 60_000;

/** Throws where the text is none; a card of which it does not say all is measured anew. */
function parseProfiles(text: string): Record<string, Stored> {
  const value = JSON.parse(text) as Record<string, Partial<Stored> | null> | null;
  if (typeof value !== 'object' || value === null) throw new Error('not an object');
  const isWhole = (entry: Partial<Stored> | null): entry is Stored =>
    Number.isSafeInteger(entry?.contextBytes) &&
    Number.isSafeInteger(entry?.granuleBytes) &&
    typeof entry?.releasesLate === 'boolean' &&
    typeof entry.driverVersion === 'string';
  return Object.fromEntries(Object.entries(value).flatMap(([uuid, entry]) => (isWhole(entry) ? [[uuid, entry]] : [])));
}

export function openProfiles(
  stateFolder: string,
  libraries: { readonly cuda: string; readonly nvml: string },
  tools: Tools,
  onProblem: (text: string) => void,
): Profiles {
  const path = join(stateFolder, 'profiles.json');
  let stored: Record<string, Stored> = {};
  let isKept = true;
  try {
    if (existsSync(path)) stored = parseProfiles(readFileSync(path, 'utf8'));
  } catch (error) {
    onProblem(`${path} cannot be read and is measured anew: ${(error as Error).message}`);
  }

  const measureOne = async (gpuUuid: string, driverVersion: string): Promise<boolean> => {
    const { LD_PRELOAD: _, ...env } = process.env;
    const answer = await tools.run({
      program: 'cotenant-calibrate',
      args: ['--cuda', libraries.cuda, '--nvml', libraries.nvml],
      env: { ...env, CUDA_VISIBLE_DEVICES: gpuUuid },
      timeoutMs: TIMEOUT_MS,
    });
    if (!answer) return false;
    try {
      if (answer.problem !== undefined) throw new Error(answer.stderr.trim() || answer.problem);
      const found = JSON.parse(answer.stdout) as CardProfile & { uuid: string };
      if (found.uuid !== gpuUuid) throw new Error(`it measured ${found.uuid}`);
      const { contextBytes, granuleBytes, releasesLate } = found;
      stored = { ...stored, [gpuUuid]: { contextBytes, granuleBytes, releasesLate, driverVersion } };
      return true;
    } catch (error) {
      const text = (error as Error).message;
      onProblem(`${gpuUuid} could not be measured, so contexts on it are charged only once they are seen: ${text}`);
      return false;
    }
  };

  /** What cannot be kept is good until this agent ends, and tried again at the next sample. */
  const keep = (): void => {
    try {
      writeFileSync(`${path}.new`, JSON.stringify(stored, null, 2));
      renameSync(`${path}.new`, path);
      isKept = true;
    } catch (error) {
      if (isKept) onProblem(`what was measured cannot be kept for the next agent: ${(error as Error).message}`);
      isKept = false;
    }
  };

  return {
    of: (gpuUuid) => stored[gpuUuid] ?? UNMEASURED,
    async measure(cards, driverVersion) {
      let fresh = false;
      for (const gpuUuid of cards) {
        if (tools.isGivenUp() || stored[gpuUuid]?.driverVersion === driverVersion) continue;
        fresh = (await measureOne(gpuUuid, driverVersion)) || fresh;
      }
      if (fresh || !isKept) keep();
      return fresh;
    },
  };
}
