// Reads a Dockerfile into stages and instructions, and a .dockerignore into an answer per path.
// Owns as much of both languages as ours use; an instruction that it does not know is an error.

export type Instruction = { readonly name: string; readonly args: readonly string[]; readonly text: string };
export type Stage = {
  readonly from: string;
  readonly name: string | undefined;
  readonly instructions: readonly Instruction[];
};

const KNOWN = ['ARG', 'FROM', 'WORKDIR', 'COPY', 'RUN', 'ENV', 'USER', 'ENTRYPOINT', 'CMD', 'LABEL', 'EXPOSE'];

/** Stages in order, with build arguments filled in by their defaults. */
export function readDockerfile(text: string): readonly Stage[] {
  const lines = text
    .replace(/^\s*#.*\n/gm, '')
    .replace(/\\\n/g, ' ')
    .split('\n')
    .map((line) => line.trim())
    .filter((line) => line !== '');
  const defaults = new Map<string, string>();
  const stages: { from: string; name: string | undefined; instructions: Instruction[] }[] = [];
  for (const line of lines) {
    const [, name = '', rest = ''] = /^([A-Za-z]+)\s+(.*)$/.exec(line) ?? [];
    const keyword = name.toUpperCase();
    if (!KNOWN.includes(keyword)) throw new Error(`not known: ${line}`);
    const filled = rest.replace(/\$\{(\w+)\}/g, (_, key: string) => defaults.get(key) ?? `no default for ${key}`);
    if (keyword === 'ARG') {
      const [key = '', value = ''] = filled.split('=');
      defaults.set(key, value);
    } else if (keyword === 'FROM') {
      const [, from = '', as] = /^(\S+)(?:\s+AS\s+(\S+))?$/i.exec(filled) ?? [];
      stages.push({ from, name: as, instructions: [] });
    } else {
      const stage = stages.at(-1);
      if (stage === undefined) throw new Error(`before any FROM: ${line}`);
      const args = filled.startsWith('[') ? (JSON.parse(filled) as string[]) : filled.split(/\s+/);
      stage.instructions.push({ name: keyword, args, text: filled });
    }
  }
  return stages;
}

/** Whether a path of the repository reaches the builder: the last line that covers it decides. */
export function reachesBuilder(ignore: string, path: string): boolean {
  let reaches = true;
  for (const line of ignore.split('\n')) {
    const pattern = line.trim();
    if (pattern === '' || pattern.startsWith('#')) continue;
    const name = pattern.replace(/^!/, '');
    if (name === '*' || path === name || path.startsWith(`${name}/`)) reaches = pattern.startsWith('!');
  }
  return reaches;
}
