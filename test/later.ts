// Commands with fixed names whose subject is not there yet: they say so and fail, so that nobody takes them for done.
const LATER: Readonly<Record<string, string>> = {
  cluster:
    'there is no test cluster yet: nothing here has run on a real Kubernetes. `npm test` runs everything that there is.',
};

const [name = ''] = process.argv.slice(2);
console.error(LATER[name] ?? `node test/later.ts: no ${name}; there are ${Object.keys(LATER).join(', ')}`);
process.exit(2);
