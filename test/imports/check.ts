// `node test/imports/check.ts [ROOT]`: reads the imports of the product with TypeScript's parser and holds them to the
// layers of rules.ts. Known violations are in known.json; fixing one means removing its line there.
import { dirname, join, relative } from 'node:path';
import { isStringLiteral } from 'typescript/unstable/ast/is';
import { API } from 'typescript/unstable/sync';
import known from './known.json' with { type: 'json' };
import { type Import, importProblems, importsAgainstOrder } from './rules.ts';

const root = process.argv[2] ?? join(import.meta.dirname, '../..');
const problems = importProblems(importsAgainstOrder(readImports(root)), process.argv[2] === undefined ? known : []);
for (const problem of problems) console.log(problem);
if (problems.length > 0) console.log('The order of folders is LAYERS in test/imports/rules.ts.');
process.exit(problems.length > 0 ? 1 : 0);

function readImports(root: string): Import[] {
  const api = new API({ cwd: root });
  const [project] = api.updateSnapshot({ openProjects: [join(root, 'tsconfig.json')] }).getProjects();
  const imports = (project?.rootFiles ?? [])
    .filter((file) => /^(src|webhook|dashboards)\//.test(relative(root, file)))
    .flatMap((file) =>
      (project?.program.getSourceFile(file)?.imports ?? [])
        .filter(isStringLiteral)
        .filter(({ text }) => text.startsWith('.'))
        .map(({ text }) => ({ from: relative(root, file), to: relative(root, join(dirname(file), text)) })),
    );
  api.close();
  return imports;
}
