// Runs several parts even if one of them fails.
export type Part = {
  readonly name: string;
  /** In test/; run.ts unless it is named. */
  readonly program?: string;
  readonly words: readonly string[];
  readonly environment: Readonly<Record<string, string>>;
};

/** Runs the parts one after the other; returns the names of those that failed or did not start. */
export async function allOf(parts: readonly Part[], run: (part: Part) => Promise<boolean>): Promise<string[]> {
  const failed: string[] = [];
  for (const part of parts) {
    const ok = await run(part).catch((error: unknown) => {
      console.error(`${part.name}: ${String(error)}`);
      return false;
    });
    if (!ok) failed.push(part.name);
  }
  return failed;
}
