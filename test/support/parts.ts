// Runs that belong together and of which none waits for another's success.
export type Part = {
  readonly name: string;
  readonly words: readonly string[];
  readonly environment: Readonly<Record<string, string>>;
};

/** One after the other, whatever becomes of those before; the names of those that failed, or could not be begun. */
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
