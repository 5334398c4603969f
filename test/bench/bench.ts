// What a benchmark is to the runner, and the things that it starts and must take down again.
import type { Teardown } from '../support/native/node.ts';
import type { Row } from './row.ts';

export type BenchOptions = {
  /** Ends within a minute, for a look; the full form is for figures that are quoted. */
  readonly quick: boolean;
  /** Folder of a trace that is not part of the repository; undefined: none was named. */
  readonly trace?: string;
  /** For people, on standard error. */
  readonly note: (text: string) => void;
};

export type Bench = {
  readonly name: string;
  readonly what: string;
  /** Needs none of the native parts. */
  readonly isPure?: boolean;
  run(scope: Teardown, options: BenchOptions): Promise<readonly Row[]>;
};

/** Runs `body`, then undoes what it started, last first, whatever became of it. */
export async function withTeardown<T>(body: (scope: Teardown) => Promise<T>): Promise<T> {
  const undo: (() => void | Promise<void>)[] = [];
  try {
    return await body({ teardown: (step) => void undo.push(step) });
  } finally {
    for (const step of undo.reverse()) await step();
  }
}
