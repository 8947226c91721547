/* Ranks the pages that the site's search finds (loaded after Sphinx's searchtools.js).

A page scores for each word of the question that it has: more for rare words, for words of its
headings and of its title, and less if the page is long. Sphinx's own ranking demands every word.
Pages about tasks come before reference, and reference before records such as the changelog. */

"use strict";

const PLACES = { text: 1, heading: 2, said: 4, title: 4 };
const LENGTH_COUNTS = 0.2;
const KINDS = [
  [/^(own-data|start|sweeps|tables|clusters|mlflow|write-a-method|reading)$/, 1.1],
  [/^(changelog|older-results|results\/|findings|contributing|architecture)/, 0.4],
  [/^(clusters\/|recipes\/(?!from-))/, 0.85],
  [/^(methods\/f|methods\/.*_|notebooks\/|reference|mistakes|api-|recipes\/from-)/, 0.7],
];
const MOST = 20;
const SAYS_NOTHING = new Set(["use", "want", "need", "get", "my", "mean", "fedray"]);

/* What people ask for in words that the page's title does not have. */
const SAID = {
  api: "python api program script train experiment predict load model jupyter notebook",
  clip: "clip prompts frozen weights download vit open_clip",
  clusters: "multi several machines ray cluster job submit slurm kubernetes kuberay cloud aws nodes token ssh",
  command: "command line several seeds cli flags options bytes sent sends traffic cost communication completion",
  concepts: "how it works reproducible same seed numbers bit server client round law partition evolution join",
  debugging: "debug pdb breakpoint print traceback error plugin nan",
  faq: "questions gpu memory out oom windows macos offline proxy cuda install version",
  "clusters/slurm": "slurm sbatch submit job",
  "clusters/kuberay": "kubernetes kuberay pod",
  "clusters/cloud": "aws cloud ssh machines",
  "from-nothing": "project empty folder tutorial table paper",
  glossary: "what is meaning definition term identity worker client prototype prompt round join",
  keys: "key option setting checkpoint join late participation number clients per round rounds device workers",
  mistakes: "error message wrong unknown key misspelt refused",
  mlflow: "mlflow tensorboard wandb compare runs ui tracking server uri upload charts",
  "own-data":
    "own image images photo photos photographs pictures folder dataset data download cifar10 cifar100 office caltech domainnet imagenet parquet descriptions texts domain",
  papers: "paper reproduce table figure printed number original",
  "write-a-method":
    "own new write implement algorithm federated method model plugin custom class hyper-parameters hook signature import",
  privacy: "differential privacy noise dp epsilon delta accountant clipping attack secure",
  reading: "result results where stored written accuracy each client folder output file csv json curve plot predict checkpoint model weights",
  results: "accuracy compare best which method results",
  scaling: "several gpus thousand clients many scale large memory",
  speed: "speed slow fast how long time seconds round gpu memory profile workers bfloat16",
  settings: "settings learning rate rates batch size sizes epochs used paper values",
  start: "install one process without ray begin first quick start resume stop ctrl-c killed continue serial",
  sweeps: "sweep tune tuning search grid optuna tpe asha hyper-parameter hyper-parameters early stopping prune best",
  tables: "table compare methods paper latex fair claim seeds baseline",
  trust: "confidence interval intervals significance significant test p-value verdict statistics seeds chance",
  "methods/index": "methods list which are implemented available supported algorithms baselines all",
  "recipes/client-metric": "metric measure log own custom client number",
  "recipes/cosine-head": "head logits classifier cosine",
  "recipes/from-flower": "flower flwr strategy port migrate",
  "recipes/from-pfllib": "pfllib port migrate",
  "recipes/loss-term": "add loss term regulariser penalty proximal",
  "recipes/lr-schedule": "learning rate schedule decay warmup cosine",
  "recipes/own-prompts": "prompt learning coop clip own context",
  "recipes/partition": "partition split dirichlet non-iid skew clients domain",
  "recipes/payload": "send prototypes server upload download new payload share",
  "recipes/personal-layer": "personal personalised layer head local batch normalisation batchnorm",
  "recipes/personal-parameter": "personal parameter state memory keep client between rounds",
  "recipes/prototypes": "prototypes personal head memory",
  "recipes/server-step": "server aggregation optimizer momentum fedadam update average",
  "recipes/source": "data source loader reader own file format csv",
  "recipes/text-encoder": "text encoder language model bert sentence embedding add",
  "recipes/text-guidance": "initialise classifier head embeddings text language guide features align lambda parameter name own method",
};

const pagesWith = (words, word) => (Object.hasOwn(words, word) ? [words[word]].flat() : []);

/* Words of the index that continue a word which the index does not have. */
const continued = (words, word) =>
  Object.hasOwn(words, word) || word.length < 3
    ? [word]
    : Object.keys(words).filter((known) => known.startsWith(word));

const lengths = (index) => {
  const counts = new Array(index.docnames.length).fill(0);
  for (const pages of Object.values(index.terms)) for (const page of [pages].flat()) counts[page]++;
  return counts;
};

/* The section whose heading has the most of the words: [heading, anchor], or null for none. */
const bestSection = (index, page, stems, terms) => {
  let best = null;
  let most = 0;
  for (const [heading, places] of Object.entries(index.alltitles))
    for (const [file, anchor] of places) {
      if (file !== page || anchor === null) continue;
      const count = stems(heading).filter((word) => terms.has(word)).length;
      if (count > most) [best, most] = [[heading, anchor], count];
    }
  return best;
};

Search.performTermsSearch = (terms, excluded) => {
  const index = Search._index;
  const stemmer = new Stemmer();
  const stems = (text) => splitQuery(text.toLowerCase()).map((word) => stemmer.stemWord(word));
  const titles = index.titles.map((title) => new Set(stems(title)));
  const said = index.docnames.map((name) => new Set(stems(SAID[name] ?? "")));
  const length = lengths(index);
  const mean = length.reduce((sum, count) => sum + count, 0) / length.length;
  const scores = new Map();
  const telling = [...terms].filter((term) => !SAYS_NOTHING.has(term));
  for (const term of telling.length ? telling : terms)
    for (const word of new Set([...continued(index.terms, term), ...continued(index.titleterms, term)])) {
      const headings = new Set(pagesWith(index.titleterms, word));
      const asked = said.flatMap((words, page) => (words.has(word) ? [page] : []));
      const pages = new Set([...pagesWith(index.terms, word), ...headings, ...asked]);
      const rarity = Math.log(1 + length.length / Math.max(1, pages.size));
      for (const page of pages) {
        const place = titles[page].has(word)
          ? "title"
          : said[page].has(word)
            ? "said"
            : headings.has(page)
              ? "heading"
              : "text";
        scores.set(page, (scores.get(page) ?? 0) + rarity * PLACES[place]);
      }
    }
  for (const word of excluded)
    for (const page of [...pagesWith(index.terms, word), ...pagesWith(index.titleterms, word)])
      scores.delete(page);
  const results = [...scores].map(([page, score]) => {
    const name = index.docnames[page];
    const kind = KINDS.find(([pattern]) => pattern.test(name))?.[1] ?? 1;
    const size = 1 - LENGTH_COUNTS + (LENGTH_COUNTS * length[page]) / mean;
    return [page, (1000 * score * kind) / Math.sqrt(size)];
  });
  results.sort(([, a], [, b]) => b - a);
  return results.slice(0, MOST).map(([page, score]) => {
    const section = bestSection(index, page, stems, terms);
    const title = index.titles[page];
    const shown = section && section[0] !== title ? `${title} > ${section[0]}` : title;
    const anchor = section ? `#${section[1]}` : "";
    return [index.docnames[page], shown, anchor, null, score, index.filenames[page], SearchResultKind.text];
  });
};
